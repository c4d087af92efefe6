"""Shards are digested as they are written, none is lost, and reading them runs nothing. One rank, in this process."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing import ShardedTensor
from megatron.core.dist_checkpointing.mapping import ShardedObject

from slime.checkpoints import CheckpointStore
from slime.digest import FileFacts, facts_of
from slime.errors import SlimeError
from slime_megatron.train.shards import HostCopy, ShardWriter, only_data


@pytest.fixture(scope="module", autouse=True)
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    meeting = tmp_path_factory.mktemp("group") / "meeting"
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def weights() -> dict[str, torch.Tensor]:
    """Of unequal sizes and types; one is a view into a larger storage."""
    return {
        "large": torch.arange(300_000, dtype=torch.float32),
        "half": torch.arange(7, dtype=torch.bfloat16),
        "view": torch.arange(100.0).view(10, 10)[:, :5],
    }


def sharded(tensors: dict[str, torch.Tensor], **objects: Any) -> dict[str, Any]:
    state: dict[str, Any] = {name: ShardedTensor.from_rank_offsets(name, value) for name, value in tensors.items()}
    return state | {name: ShardedObject(name, value, (1,), (0,)) for name, value in objects.items()}


def save(state: dict[str, Any], folder: Path) -> dict[str, FileFacts]:
    writer = ShardWriter()
    dist_checkpointing.save(state, str(folder), writer)
    return writer.written


def load(state: dict[str, Any], folder: Path) -> Any:
    with only_data(folder):
        return dist_checkpointing.load(state, str(folder))


def test_what_was_saved_comes_back_and_its_digests_are_those_of_the_files(tmp_path: Path) -> None:
    random_state = {"cpu": torch.get_rng_state(), "names": ["a", 1, None]}
    written = save(sharded(weights(), rng=random_state) | {"step": 3}, tmp_path)
    assert written.keys() == {"__0_0.distcp", "__0_1.distcp", ".metadata"}
    assert written == {name: facts_of(tmp_path / name) for name in written}
    empty = {name: torch.full_like(value, -1) for name, value in weights().items()}
    loaded = load(sharded(empty, rng=None), tmp_path)
    assert loaded["step"] == 3
    assert torch.equal(loaded["rng"]["cpu"], random_state["cpu"])
    assert loaded["rng"]["names"] == random_state["names"]
    assert all(torch.equal(loaded[name], value) for name, value in weights().items())


def test_a_flipped_bit_of_a_large_shard_is_a_damaged_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    for step in (10, 20):
        with store.saving(step, {}) as staging:
            staging.written |= save(sharded({"weight": torch.zeros(18 * 2**20)}), staging.path)  # 72 MiB
    path = max((tmp_path / "checkpoints/step-000020").iterdir(), key=lambda path: path.stat().st_size)
    with path.open("r+b") as file:
        file.seek(50 * 2**20)
        file.write(b"\x10")
    newest = store.all()[-1]
    assert newest.problem().startswith(f"{path.name} has other content than was saved")
    latest = store.latest()
    assert latest is not None
    assert latest.step == 10


@pytest.mark.parametrize("name", ["__0_0.distcp", "__0_1.distcp"])
def test_a_file_that_cannot_be_written_fails_the_save(tmp_path: Path, name: str) -> None:
    """One of the two is written by a thread of torch's, which dies without a word to its creator."""
    (tmp_path / name).mkdir()
    with pytest.raises(BaseException, match="Is a directory"):  # torch's CheckpointException is no Exception
        save(sharded(weights()), tmp_path)


def test_the_next_waits_until_its_memory_is_free(tmp_path: Path) -> None:
    """Nothing queues up, and what is being written is not overwritten."""
    host_copy, writers = HostCopy(dist.new_group(backend="gloo")), []
    for step in range(3):
        (tmp_path / str(step)).mkdir()
        writers.append(ShardWriter(host_copy))
        state = sharded({"large": torch.full((2**24,), float(step)), "half": torch.full((7,), step)})
        dist_checkpointing.save(state, str(tmp_path / str(step)), writers[-1])
        assert all(writer.is_done for writer in writers[:-1])
    for step, writer in enumerate(writers):
        writer.wait()
        assert writer.written == {name: facts_of(tmp_path / str(step) / name) for name in writer.written}
        empty = {"large": torch.empty(2**24), "half": torch.empty(7, dtype=torch.long)}
        assert all(set(value.tolist()) == {step} for value in load(sharded(empty), tmp_path / str(step)).values())


def test_steps_go_before_what_is_written_meanwhile() -> None:
    nice = HostCopy(dist.new_group(backend="gloo")).write(lambda: os.getpriority(os.PRIO_PROCESS, 0))
    assert nice.result() == min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10)


class Code:
    """Unpickles by running something."""

    def __reduce__(self) -> Any:
        return os.mkdir, (os.environ["SLIME_TEST_RAN"],)


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that `Code` makes when it is unpickled."""
    monkeypatch.setenv("SLIME_TEST_RAN", str(tmp_path / "ran"))
    return tmp_path / "ran"


def test_code_in_the_index_is_refused(tmp_path: Path, ran: Path) -> None:
    save(sharded(weights()), tmp_path)
    index = pickle.loads((tmp_path / ".metadata").read_bytes())
    index.planner_data = Code()
    (tmp_path / ".metadata").write_bytes(pickle.dumps(index))
    with pytest.raises(SlimeError, match=r"/\.metadata: the index is not data alone, it refers to posix\.mkdir"):
        load(sharded(weights()), tmp_path)
    assert not ran.exists()
    pickle.loads((tmp_path / ".metadata").read_bytes())
    assert ran.exists(), "it would have run"


def test_code_in_an_object_is_refused(tmp_path: Path, ran: Path) -> None:
    save(sharded(weights(), rng=Code()), tmp_path)
    with pytest.raises(BaseException, match="Weights only load failed"):
        load(sharded(weights(), rng=None), tmp_path)
    assert not ran.exists()
    dist_checkpointing.load(sharded(weights(), rng=None), str(tmp_path))
    assert ran.exists(), "it would have run"


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff\xfe\x00", pickle.dumps({"a": 1}), pickle.dumps("x")[:-3], b"cnowhere\nname\n."]
)
def test_what_is_no_index_is_named(tmp_path: Path, data: bytes) -> None:
    save(sharded(weights()), tmp_path)
    (tmp_path / ".metadata").write_bytes(data)
    with pytest.raises(SlimeError, match=r"/\.metadata: (it is no index of shards|the index is not data alone)"):
        load(sharded(weights()), tmp_path)
