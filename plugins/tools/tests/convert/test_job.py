"""Conversions of whole folders: killed and continued, by several hosts, within the memory that is promised."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import save_file

from plugins.tools.tests.convert.test_dist import under_torchrun
from slime.checkpoints import CONVERTED
from slime.errors import SlimeError
from slime_testing.patience import Patience, family, run_within
from slime_testing.ranks import Rank, run_ranks
from slime_tools.convert.staging import Staging
from tests.resident import growth

CONFIG = {"model_type": "any", "num_hidden_layers": 1}
QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 128]}
NUM_WEIGHTS = 60
LARGEST = (8192, 8192)


def write_fp8(folder: Path, num_weights: int, shape: tuple[int, int]) -> Path:
    """A folder with FP8 weights of any values."""
    folder.mkdir()
    values = torch.randint(0x7F, shape, dtype=torch.uint8).view(torch.float8_e4m3fn)
    scales = torch.rand(-(-shape[0] // 128), -(-shape[1] // 128))
    tensors = {f"layers.{number}.weight": values.clone() for number in range(num_weights)}
    tensors |= {f"{name}_scale_inv": scales * (number + 1) for number, name in enumerate(list(tensors))}
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": QUANTIZATION}))
    return folder


def command(source: Path, destination: Path, *more: str) -> list[str]:
    return ["-m", "slime", "convert", "fp8-to-bf16", str(source), str(destination), "--file-gb", "0.0003", *more]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.name != CONVERTED}


@pytest.mark.slow
def test_killed_conversion_goes_on_where_it_stopped_also_on_other_hosts(tmp_path: Path) -> None:
    source = write_fp8(tmp_path / "source", NUM_WEIGHTS, (256, 512))
    run_within(100, [sys.executable, *command(source, tmp_path / "whole")])
    files, journal = (tmp_path / ".out.converting" / name for name in ("files", "journal"))
    files.mkdir(parents=True)
    never = files / f"model-00030-of-{NUM_WEIGHTS:05}.safetensors"
    os.mkfifo(never)  # nobody reads it, so that who comes to write it waits: this conversion has no end
    killed = subprocess.Popen([sys.executable, *command(source, tmp_path / "out", "--processes", "2")])
    patience = Patience(60, lambda: family(killed.pid))
    assert patience.wait_for(lambda: len(list(journal.glob("*.json"))) >= 5, every_s=0.002)
    workers = family(killed.pid)[1:]
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    ended = Patience(60, lambda: workers).wait_for(lambda: not any(map(psutil.pid_exists, workers)))
    assert ended, "they would write beside those that continue"
    done = {entry.stem: (files / entry.stem).stat().st_mtime_ns for entry in journal.glob("*.json")}
    assert 5 <= len(done) < NUM_WEIGHTS
    assert not (tmp_path / "out").exists()
    never.unlink()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run_within(100, [*torchrun, *command(source, tmp_path / "out", "--processes", "1")])
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in done} == done


def convert_late(rank: Rank, source: Path, destination: Path) -> None:
    """The other ranks begin when the first one could be through."""
    if rank.rank:
        time.sleep(2)
    convert_small(source, destination)


def convert_torn(rank: Rank, source: Path, destination: Path) -> None:
    """All but the end."""
    Staging.publish = lambda staging: None  # type: ignore[method-assign]
    convert_small(source, destination)


def convert_small(source: Path, destination: Path) -> None:
    """Into a file for each weight."""
    from slime_tools.convert import fp8, job

    job.run(replace(fp8.to_bf16(source, destination), file_bytes=300_000), 1)


@pytest.mark.slow
def test_a_host_that_has_nothing_left_to_write_is_waited_for(tmp_path: Path) -> None:
    """It looks at what it has written before, which may be damaged; and the folder is not gone before it comes."""
    source, out = write_fp8(tmp_path / "source", 3, (256, 512)), tmp_path / "out"
    run_ranks(convert_torn, 1, source, out)
    damaged = tmp_path / ".out.converting/files/model-00002-of-00003.safetensors"  # of rank 1
    whole = damaged.read_bytes()
    damaged.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    under_torchrun(convert_late, 2, source, out)
    assert (out / damaged.name).read_bytes() == whole


def convert_here(rank: Rank, source: Path, destination: Path) -> int:
    """Growth of this process while it converts."""
    from slime_tools.convert import fp8, job

    made = fp8.to_bf16(source, destination)
    for name in ("RANK", "WORLD_SIZE"):
        del os.environ[name]
    return growth(lambda: job.run(made, 1))


@pytest.mark.slow
def test_memory_is_that_of_a_few_pieces(tmp_path: Path) -> None:
    largest = LARGEST[0] * LARGEST[1] * 2
    source = write_fp8(tmp_path / "source", 1, LARGEST)
    [grown] = run_ranks(convert_here, 1, source, tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").stat().st_size > largest
    from slime_tools.convert import estimate

    promised = estimate.to_bf16(source, 1).process_bytes
    assert grown < 1.5 * promised, "by 'slime plan convert'; what Python's libraries load on the way is in it"
    assert grown < largest / 2, "promised: under twice the largest tensor; 8 MiB pieces take some 50 MiB in all"


def test_full_disk_is_found_before_anything_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slime_tools.convert import fp8, job

    source = write_fp8(tmp_path / "source", 1, (128, 128))
    monkeypatch.setattr("slime.files.free_bytes", lambda path: 1000)
    with pytest.raises(SlimeError, match=r"no room: 32\.\d KiB are needed, 1000 B are free"):
        job.run(fp8.to_bf16(source, tmp_path / "out"), 1)
    assert not list((tmp_path / ".out.converting/files").iterdir())


def test_source_that_changed_is_another_conversion(tmp_path: Path) -> None:
    from slime_tools.convert import fp8

    source = write_fp8(tmp_path / "source", 1, (128, 128))
    before = fp8.to_bf16(source, tmp_path / "out")
    Staging(tmp_path / "out", before.identity).open()
    Staging(tmp_path / "out", fp8.to_bf16(source, tmp_path / "out").identity).open()
    os.utime(source / "model.safetensors")
    with pytest.raises(SlimeError, match="was begun here"):
        Staging(tmp_path / "out", fp8.to_bf16(source, tmp_path / "out").identity).open()
