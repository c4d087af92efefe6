"""HF folders as Megatron-core checkpoints and back: byte for byte in any layout, within the memory of one parameter."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from safetensors.torch import load_file, save_file

from slime.checkpoints import require_as_written
from slime.errors import SlimeError
from slime.net import LOOPBACK, serve_store
from slime_testing.models import run_config, write_checkpoint
from slime_testing.patience import Patience, family, run_within
from slime_testing.ranks import Rank, run_ranks
from slime_tools.convert.layout import parse
from tests.resident import MIB, growth

MOE: dict[str, Any] = json.loads((Path(__file__).parents[4] / "plugins/models/glm4/tests/configs/moe.json").read_text())
LAYOUT = "tensor_model_parallel_size=2 pipeline_model_parallel_size=2 expert_model_parallel_size=2"
LARGE = {"hidden_size": 512, "vocab_size": 65536, "num_hidden_layers": 2, "num_nextn_predict_layers": 0}
TRIES = 3
"""The least growth counts: pages of libraries that a kernel short of memory took back, and reads again, add to it."""
LARGEST = 65536 * 512 * 2  # the embeddings, in bf16, as large as the output layer


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In bf16, with fp32 correction biases, a prediction layer and its copies of embeddings and head."""
    folder = tmp_path_factory.mktemp("hf")
    write_checkpoint(MOE, folder, dtype=torch.bfloat16)
    tensors, layer = load_file(folder / "model.safetensors"), f"model.layers.{MOE['num_hidden_layers']}."
    for copy, name in (("embed_tokens", "model.embed_tokens"), ("shared_head.head", "lm_head")):
        tensors[f"{layer}{copy}.weight"] = tensors[f"{name}.weight"].clone()
    save_file(tensors, folder / "model.safetensors")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def load(folder: Path) -> dict[str, torch.Tensor]:
    return {name: each for file in folder.glob("*.safetensors") for name, each in load_file(file).items()}


def assert_same(one: Path, other: Path) -> None:
    ours, theirs = load(one), load(other)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype is theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


def under_torchrun(function: Callable[..., Any], world_size: int, *args: Any) -> list[Any]:
    """`run_ranks`, where the ranks find what torchrun tells its own: its agent serves their store."""
    store = serve_store(LOOPBACK)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("MASTER_ADDR", LOOPBACK)
        environment.setenv("MASTER_PORT", str(store.port))
        environment.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")
        return run_ranks(function, world_size, *args)


def to_dist(rank: Rank, source: Path, destination: Path, words: str) -> None:
    from slime_tools.convert import to_dist

    to_dist.convert(source, destination, parse(words.split()), 1, file_bytes=100_000)


def from_dist(rank: Rank, source: Path, destination: Path) -> None:
    from slime_tools.convert import job
    from slime_tools.convert.command import from_dist

    job.run(from_dist(source, destination), 1)


def start(rank: Rank, folder: Path, weights: Path, layout: dict[str, Any], mtp_loss_scale: float | None) -> Any:
    """The weights that a run starts from, and those of its reference, as it would export them."""
    from slime_megatron.train import reference
    from slime_megatron.train.trainer import Trainer

    cfg = run_config(MOE["model_type"], folder, layout)
    cfg.model.weights, cfg.run.num_steps, cfg.algo.kl_coef = str(weights), 1, 0.1
    cfg.train.mtp_loss_scale = mtp_loss_scale
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    own = dict(trainer.export())
    assert trainer.reference is not None
    with torch.no_grad():
        for module in trainer.model.modules:
            for parameter in module.parameters():
                if parameter.requires_grad:  # what is frozen is no part of the reference: it never changes
                    parameter.zero_()
    reference.write(trainer.reference, trainer.model.modules)
    return own, dict(trainer.export())


@pytest.mark.slow
def test_there_and_back_and_a_run_that_starts_from_it(source: Path, tmp_path: Path) -> None:
    under_torchrun(to_dist, 4, source, tmp_path / "dist", LAYOUT)
    assert (tmp_path / "dist/tokenizer.json").exists()
    assert len(list((tmp_path / "dist").glob("*.distcp"))) > 8
    require_as_written(tmp_path / "dist")  # as a run compares it
    run_ranks(from_dist, 1, tmp_path / "dist", tmp_path / "hf")
    assert_same(source, tmp_path / "hf")
    expected = load(source)
    copies = {name for name in expected if name.endswith(("4.embed_tokens.weight", "shared_head.head.weight"))}
    assert len(copies) == 2
    pipeline = {"pipeline_model_parallel_size": 2}
    for layout, scale in ((pipeline, 0.2), ({"expert_model_parallel_size": 2, "bf16": True}, None)):
        dtype = torch.bfloat16 if "bf16" in layout else torch.float32
        (own, reference), _ = run_ranks(start, 2, tmp_path / "dist", tmp_path / "dist", layout, scale)
        assert own.keys() == reference.keys() == expected.keys() - copies
        for name, tensor in own.items():
            assert tensor.dtype is (torch.float32 if "correction_bias" in name else dtype)
            assert torch.equal(tensor.float(), expected[name].float()), name
            assert torch.equal(tensor, reference[name]), name


@pytest.mark.slow
def test_a_correction_bias_in_bf16_becomes_fp32(source: Path, tmp_path: Path) -> None:
    """As tools leave it that turn every tensor into BF16. The model holds it in fp32, whatever the checkpoint has."""
    tensors = {name: tensor.bfloat16() for name, tensor in load(source).items()}
    shutil.copytree(source, tmp_path / "source")
    save_file(tensors, tmp_path / "source/model.safetensors")
    under_torchrun(to_dist, 1, tmp_path / "source", tmp_path / "dist", "")
    run_ranks(from_dist, 1, tmp_path / "dist", tmp_path / "hf")
    found = load(tmp_path / "hf")
    biases = [name for name in found if name.endswith("correction_bias")]
    assert biases
    assert found.keys() == tensors.keys()
    for name, tensor in found.items():
        assert tensor.dtype is (torch.float32 if name in biases else torch.bfloat16), name
        assert torch.equal(tensor, tensors[name].to(tensor.dtype)), name


def endless(files: Path) -> Path:
    """A file of a conversion that nobody can write: it is a pipe that nobody reads."""
    files.mkdir(parents=True)
    os.mkfifo(never := files / "__0_4_0.distcp")
    return never


@pytest.mark.slow
def test_killed_conversion_goes_on_under_torchrun(source: Path, tmp_path: Path) -> None:
    arguments = ["-m", "slime", "convert", "hf-to-dist", str(source), str(tmp_path / "out"), "--file-gb", "0.00001"]
    command = [*arguments, "--layout", "tensor_model_parallel_size=2", "--processes", "2"]
    journal, files = (tmp_path / ".out.converting" / name for name in ("journal", "files"))
    never = endless(files)
    killed = subprocess.Popen([sys.executable, *command], start_new_session=True)
    patience = Patience(100, lambda: family(killed.pid))
    assert patience.wait_for(lambda: len(list(journal.glob("*.json"))) >= 5, every_s=0.002)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    done = {entry.stem: (files / entry.stem).stat().st_mtime_ns for entry in journal.glob("*.json")}
    assert len(done) >= 5
    assert not (tmp_path / "out").exists()
    never.unlink()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run_within(100, [*torchrun, *command])
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in done} == done
    run_ranks(from_dist, 1, tmp_path / "out", tmp_path / "hf")
    assert_same(source, tmp_path / "hf")


@pytest.mark.slow
@pytest.mark.parametrize("num_done", [0, 1, 8])
def test_a_conversion_whose_command_is_killed_goes_on(source: Path, tmp_path: Path, num_done: int) -> None:
    """The command alone: its ranks end by themselves. The folder is there only when it is whole."""
    arguments = ["-m", "slime", "convert", "hf-to-dist", str(source), str(tmp_path / "out"), "--file-gb", "0.00001"]
    command = [sys.executable, *arguments, "--layout", "tensor_model_parallel_size=2", "--processes", "2"]
    journal, never = tmp_path / ".out.converting/journal", endless(tmp_path / ".out.converting/files")
    killed = subprocess.Popen(command)
    patience = Patience(100, lambda: family(killed.pid))
    assert patience.wait_for(lambda: journal.exists() and len(list(journal.glob("*.json"))) >= num_done, every_s=0.002)
    assert not (tmp_path / "out").exists()
    ranks = family(killed.pid)[1:]
    killed.kill()
    killed.wait()
    assert not (tmp_path / "out").exists()
    assert Patience(60, lambda: ranks).wait_for(lambda: not any(map(psutil.pid_exists, ranks)))
    never.unlink()
    run_within(100, command)
    run_ranks(from_dist, 1, tmp_path / "out", tmp_path / "hf")
    assert_same(source, tmp_path / "hf")


def grown(rank: Rank, source: Path, folder: Path) -> tuple[int, int]:
    """Growth of this process by converting there and back."""
    from slime_tools.convert import job
    from slime_tools.convert.command import from_dist

    there = growth(lambda: to_dist(rank, source, folder / "dist", ""))
    import torch.distributed as dist

    dist.destroy_process_group()
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    made = from_dist(folder / "dist", folder / "hf")
    return there, growth(lambda: job.run(made, 1))


@pytest.mark.slow
def test_memory_is_that_of_one_parameter(tmp_path: Path) -> None:
    source = tmp_path / "source"
    write_checkpoint(MOE | LARGE, source, dtype=torch.bfloat16)
    promised, there, back = LARGEST * 1.5 + 16 * MIB, list[int](), list[int]()
    for number in range(TRIES):
        (folder := tmp_path / str(number)).mkdir()
        [(one, other)] = under_torchrun(grown, 1, source, folder)
        assert_same(source, folder / "hf")
        there, back = [*there, one], [*back, other]
        if min(there) < promised and min(back) < LARGEST * 2:
            break
    assert min(there) < promised, "the embeddings, and the rows of others on their way"
    from slime_tools.convert import estimate

    assert estimate.to_dist(source, parse([]), 1).process_bytes == promised, "what the plan says"
    assert min(back) < LARGEST * 2, "promised: under twice the largest tensor"


def message(rank: Rank, source: Path, destination: Path, words: str) -> str:
    try:
        to_dist(rank, source, destination, words)
    except SlimeError as error:
        return str(error)
    return ""


@pytest.mark.slow
def test_checkpoint_of_another_shape_is_refused_before_anything_is_written(source: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.json").write_text((source / "config.json").read_text())
    tensors, name = load(source), "model.layers.1.input_layernorm.weight"
    save_file(tensors | {name: tensors[name][:-1].clone()}, bad / "model.safetensors")
    [said] = under_torchrun(message, 1, bad, tmp_path / "out", "")
    assert f"'{name}' has shape [63], the model needs [64]" in said
    save_file({key: each for key, each in tensors.items() if key != name}, bad / "model.safetensors")
    [said] = under_torchrun(message, 1, bad, tmp_path / "out", "")
    assert f"the tensor '{name}' is missing" in said
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]
