"""Weights from this process into real engines, the faults that must not pass, and what an engine serves after them."""

import dataclasses
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from slime.__main__ import main
from slime.errors import SlimeError
from slime.net import Endpoint, Secret
from slime.weights.publisher.engine_link import EngineLink
from slime_sglang.disk.publish import Disk, VersionFolder
from slime_testing.engines import hf_tensors, running_engine
from slime_testing.publishing import publish, publish_over
from tests.transports import BUCKET, PROMPT, VICTIM, flip_bit, generate, half
from weight_buckets.bucket import SharedBucket
from weight_buckets.receipt import NOTE_KEY

pytestmark = pytest.mark.slow

NOBODY = Endpoint("http://127.0.0.1:9", Secret("any"))
"""The discard port: nothing listens."""
TOLERANCE = 1e-5
"""Nats, fp32 on both sides: the sums run in another order; seen are 1.5e-6."""


@pytest.fixture(scope="module")
def model(hf_model, tiny_model):
    return hf_model(tiny_model)


@pytest.fixture(scope="module")
def tensors(model):
    return dict(hf_tensors(model))


@pytest.fixture
def served(endpoint, tensors):
    """The engine, serving `tensors` as version 1."""
    publish(iter(tensors.items()), [endpoint], 1, BUCKET)
    return endpoint


@torch.no_grad()
def logprobs(model, completion, temperature):
    logits = model(torch.tensor([[*PROMPT, *completion.tokens]])).logits[0, len(PROMPT) - 1 : -1]
    return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(completion.tokens)[:, None])[:, 0]


def check_parity(model, completion, temperature=1.0):
    wanted = logprobs(model, completion, temperature)
    torch.testing.assert_close(torch.tensor(completion.logprobs), wanted, atol=TOLERANCE, rtol=0)


def check_refusal(endpoint):
    """An engine with a part of a version generates under neither that version's number nor the one before."""
    with pytest.raises(SlimeError, match=f"{endpoint}.* serves 'incomplete' weights"):
        generate(endpoint)


@pytest.mark.parametrize("bucket_bytes", [1, BUCKET, 1 << 30])
def test_receipt(endpoint, tensors, bucket_bytes):
    receipt = publish(iter(tensors.items()), [endpoint], 7, bucket_bytes)
    assert (receipt.version, receipt.engines) == (7, (endpoint.url,))
    assert receipt.num_tensors == len(tensors)
    assert receipt.num_bytes == sum(tensor.nbytes for tensor in tensors.values())
    assert generate(endpoint).weight_version == 7


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
def test_logprobs_are_of_the_distribution_that_was_sampled_from(served, model, temperature):
    check_parity(model, generate(served, 32, temperature=temperature), temperature)


def test_generation_follows_the_weights(served, hf_model, tiny_model):
    before = generate(served, temperature=0.0)
    other = hf_model(tiny_model, seed=1)
    publish(hf_tensors(other), [served], 2, BUCKET)
    after = generate(served, temperature=0.0)
    assert (before.weight_version, after.weight_version) == (1, 2)
    assert before.tokens != after.tokens
    check_parity(other, after)


def through_disk(folder, tensors, endpoints, version, kind=Disk):
    """Publish by way of `folder`; returns the receipt."""
    links = [EngineLink(endpoint, version, 60) for endpoint in endpoints]
    with ThreadPoolExecutor(max(len(links), 1)) as pool:
        transport = kind(links, pool, folder, version, torch.device("cpu"))
        return publish_over(transport, iter(tensors.items()), version, BUCKET)


class FlippedOnDisk(Disk):
    """A file that loses a bit behind the publisher's back, before an engine is asked."""

    def _commit(self, summary):
        super()._commit(summary)
        file = next((self._folder.path / self._name).glob("00002.*"))
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)


def stepped(tensors, seed):
    """After a step that moves one weight in a hundred."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.where(torch.rand(tensor.shape, generator=generator) < 0.01, tensor * 1.01, tensor)
        for name, tensor in tensors.items()
    }


def test_through_a_disk(endpoint, hf_model, tiny_model, tensors, tmp_path, capsys, monkeypatch):
    """An engine that comes late, deltas, a damaged file: what it holds has always the bits of a full publish."""
    folder, versions = VersionFolder(tmp_path, full_every=4), [stepped(tensors, 0)]
    late = through_disk(folder, versions[0], [], 10)
    for version in (11, 12):
        versions.append(stepped(versions[-1], version))
        late = through_disk(folder, versions[-1], [], version)
    monkeypatch.setenv("SLIME_ENGINE_KEY", endpoint.key)
    assert main(["follow", str(tmp_path), endpoint.url, "--once"]) == 0
    assert f"{endpoint}: version 12 (000003-v12) in " in capsys.readouterr().out
    assert generate(endpoint).weight_version == 12
    assert publish(iter(versions[-1].items()), [endpoint], 12, BUCKET).fingerprint == late.fingerprint

    for file in tmp_path.glob("*/0*"):  # what the engine keeps is all that the next delta needs
        file.unlink()
    versions.append(stepped(versions[-1], 13))
    delta = through_disk(folder, versions[-1], [endpoint], 13)
    assert delta.num_bytes_sent < delta.num_bytes / 10
    check_parity(of(versions[-1], hf_model(tiny_model)), generate(endpoint, 32))
    assert publish(iter(versions[-1].items()), [endpoint], 13, BUCKET).fingerprint == delta.fingerprint

    with pytest.raises(SlimeError, match=r"000005-v14/00002\.full: the file is damaged"):
        through_disk(folder, tensors, [endpoint], 14, FlippedOnDisk)
    check_refusal(endpoint)
    through_disk(VersionFolder(tmp_path, full_every=1), tensors, [endpoint], 15)
    check_parity(of(tensors, hf_model(tiny_model)), generate(endpoint))


def of(tensors, model):
    """The model with these weights."""
    model.load_state_dict(tensors)
    return model


def test_tensor_parallel_engine(served, model, tensors, tiny_model, tmp_path):
    """Two ranks each use a part of most tensors: the parts must make the whole, on both sides. At last it dies on the
    way: it is named, and the engine that lives, which took all buckets but the last one, holds no version."""
    folder = VersionFolder(tmp_path / "versions", full_every=4)
    with running_engine(tiny_model, tmp_path / "engine.log", tp_size=2) as engine:
        for version, values in enumerate([stepped(tensors, 0), tensors]):
            through_disk(folder, values, [engine.endpoint], version)
        check_parity(model, generate(engine.endpoint, 32))
        with pytest.raises(SlimeError, match=r"000003-v2/00002\.delta: the file is damaged"):
            through_disk(folder, stepped(tensors, 1), [engine.endpoint], 2, FlippedOnDisk)
        check_refusal(engine.endpoint)
        publish(iter(tensors.items()), [engine.endpoint], 1, BUCKET)
        check_parity(model, generate(engine.endpoint, 32))
        with pytest.raises(SlimeError, match=r"'model\.layers\.0\.stranger\.weight'.* no place for 36 bytes"):
            publish(iter(with_stranger(tensors).items()), [engine.endpoint], 2, BUCKET)
        with pytest.raises(SlimeError, match=rf"missing {VICTIM}"):
            publish(iter(without_victim(tensors).items()), [engine.endpoint], 2, BUCKET)
        publish(iter(tensors.items()), [engine.endpoint], 3, BUCKET)
        assert generate(engine.endpoint).weight_version == 3
        until_it_dies = half(tensors, partial(os.killpg, engine.pid, signal.SIGKILL))
        with pytest.raises(SlimeError, match=engine.endpoint.url):
            publish(until_it_dies, [served, engine.endpoint], 4, BUCKET)
    check_refusal(served)


class FlippedBit(SharedBucket):
    """Memory that loses a bit of VICTIM behind the publisher's back."""

    def payload(self, note):
        flip_bit(self)
        return super().payload(note)


class LostBucket(SharedBucket):
    """The second bucket never arrives, what follows does."""

    def payload(self, note):
        return super().payload(dataclasses.replace(note, index=note.index + 1) if note.index == 1 else note)


class EarlyEnd(SharedBucket):
    """The second bucket says that it is the last."""

    def payload(self, note):
        return super().payload(dataclasses.replace(note, last=note.last or note.index == 1))


def without_victim(tensors):
    return {name: tensor for name, tensor in tensors.items() if name != VICTIM}


def with_stranger(tensors):
    return {**tensors, "model.layers.0.stranger.weight": torch.zeros(3, 3)}


def with_short_victim(tensors):
    return {**tensors, VICTIM: tensors[VICTIM][:-1]}


def with_long_victim(tensors):
    return {**tensors, VICTIM: torch.cat([tensors[VICTIM]] * 2)}


def with_double_victim(tensors):
    return {**tensors, VICTIM: tensors[VICTIM].double() * (1 + 2**-40)}


FAULTS = {
    "left out": (without_victim, SharedBucket, rf"missing {VICTIM}"),
    "extra": (with_stranger, SharedBucket, r"'model\.layers\.0\.stranger\.weight'.* no place"),
    "too short": (with_short_victim, SharedBucket, rf"'{VICTIM}' does not fit"),
    "too long": (with_long_victim, SharedBucket, rf"'{VICTIM}'"),
    "more precise than the engine": (with_double_victim, SharedBucket, rf"'{VICTIM}' \(torch\.float64\)"),
    "flipped bit": (dict, FlippedBit, rf"'{VICTIM}' arrived with digest"),
    "last too early": (
        dict,
        EarlyEnd,
        r"ended after \d+ tensors, with digests of 0: bucket 1 was not the last",
    ),
    "lost bucket": (dict, LostBucket, r"bucket 1 of version 2 never arrived"),
}


@pytest.mark.parametrize(("change", "bucket_type", "message"), FAULTS.values(), ids=FAULTS)
def test_fault_is_named_and_mended_by_the_next_publish(served, model, tensors, change, bucket_type, message):
    with pytest.raises(SlimeError, match=message) as raised:
        publish(iter(change(tensors).items()), [served], 2, BUCKET, bucket_type=bucket_type)
    assert served.url in str(raised.value)
    check_refusal(served)
    publish(iter(tensors.items()), [served], 3, BUCKET)
    check_parity(model, generate(served))


def test_iterator_is_drained_after_a_fault(served, tensors):
    """An export is collective: the other ranks wait in it."""
    iterator = iter(with_short_victim(tensors).items())
    with pytest.raises(SlimeError):
        publish(iterator, [served], 2, 1)
    assert next(iterator, None) is None


def shared_memory():
    """Descriptors of this process: other tests of buckets may have left some to the garbage collector."""
    return {link.name for link in Path("/proc/self/fd").iterdir() if "slime-bucket" in str(link.resolve())}


def test_shared_memory_is_gone_afterwards(engine, served, tensors):
    before = shared_memory()
    publish(iter(tensors.items()), [served], 2, BUCKET)
    assert shared_memory() <= before
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended since
            assert not in_group(process, engine.pid) or "slime-bucket" not in (process / "maps").read_text()


def in_group(process, group):
    try:
        return os.getpgid(int(process.name)) == group
    except ProcessLookupError:
        return False


def test_an_engine_without_slime_is_refused(tiny_model, tensors, tmp_path, monkeypatch):
    monkeypatch.setenv("SGLANG_PLUGINS", "torch_cpu")  # the platform, not slime's hook
    with (
        running_engine(tiny_model, tmp_path / "engine.log") as engine,
        pytest.raises(SlimeError, match="keeps no receipts"),
    ):
        publish(iter(tensors.items()), [engine.endpoint], 1, BUCKET)


def test_engine_that_serves_another_version_is_named():
    link = EngineLink(NOBODY, 7, 1.0)
    answer = f'{{"{NOTE_KEY}": {{}}}} Weight version updated to %d.'
    assert link._receipt({"message": answer % 7}, last=True) == {}
    with pytest.raises(SlimeError, match=r"that it serves version 7 from now on: ' Weight version updated to 6\.'"):
        link._receipt({"message": answer % 6}, last=True)


def test_engine_that_never_was(tensors):
    with pytest.raises(SlimeError, match=r"http://127\.0\.0\.1:9 .*|http://127\.0\.0\.1:9: is not reachable"):
        publish(iter(tensors.items()), [NOBODY], 1, BUCKET)
