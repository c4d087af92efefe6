"""How fast `slime convert` goes beside the disk, and the memory that a process of it takes.

    python benchmarks/convert.py --gb 2 --processes 2      # BF16 -> FP8 -> BF16 of 2 GB; --folder names the disk

What the disk does is measured by as many processes that read the same source files and write as many bytes of zeros,
flushed, with no work between. The source is dropped from the page cache before each measurement. A round measures the
start of the processes (a conversion of almost nothing), the conversion less that, and the disk, one after another, so
that all three see the same machine; given is the median of the rounds. Tensors have the sizes of a mixture of experts,
[1536, 5120] and [5120, 1536].
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import torch
from machine import conditions
from safetensors.torch import save_file

from slime.convert import fp8, job
from slime.convert.schemes import Strategy

PROMISED_SHARE = 0.7
"""Of the rate of the disk."""
SHAPES = [(1536, 5120), (1536, 5120), (5120, 1536)]
FILE_BYTES = 250 * 10**6
BLOCK_BYTES = 2**23


def write_bf16(folder: Path, num_bytes: int, shapes: Sequence[tuple[int, int]] = SHAPES) -> Path:
    """A folder of random matrices."""
    folder.mkdir()
    layer = sum(rows * columns * 2 for rows, columns in shapes)
    count, per_file, weight_map = num_bytes // layer, max(1, FILE_BYTES // layer), {}
    for start in range(0, count, per_file):
        tensors = {
            f"model.layers.{number}.mlp.{name}.weight": (torch.randn(shape) * 0.02).bfloat16()
            for number in range(start, min(start + per_file, count))
            for name, shape in zip(("gate_proj", "up_proj", "down_proj"), shapes, strict=True)
        }
        file = f"model-{start:05}.safetensors"
        save_file(tensors, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps({"model_type": "any", "num_hidden_layers": 1}))
    return folder


def forget(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for file in folder.glob("*.safetensors"):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(work: tuple[Sequence[Path], Path, float]) -> None:
    """Read files, and write `ratio` bytes of zeros for each byte read."""
    sources, target, ratio = work
    block, zeros = bytearray(BLOCK_BYTES), memoryview(bytes(BLOCK_BYTES * 3))
    with target.open("wb", buffering=0) as out:
        for path in sources:
            with path.open("rb", buffering=0) as source:
                while count := source.readinto(block):
                    out.write(zeros[: int(count * ratio)])
        os.fsync(out.fileno())


def bare(source: Path, like: Path, folder: Path, processes: int) -> float:
    """Seconds of the disk alone."""
    folder.mkdir()
    sources, ratio = sorted(source.glob("*.safetensors")), size(like) / size(source)
    work = [(sources[rank::processes], folder / str(rank), ratio) for rank in range(processes)]
    forget(source)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.5] * processes))  # all have started
        start = time.perf_counter()
        list(pool.map(copy, work))
        seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return seconds


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def convert(made: job.Job, processes: int, file_bytes: int = FILE_BYTES) -> tuple[float, float]:
    """Seconds of a conversion, and of the processors of its processes, both with their start."""
    shutil.rmtree(made.destination, ignore_errors=True)
    forget(made.source)
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    job.run(replace(made, file_bytes=file_bytes), processes)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0, help="of the BF16 checkpoint")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        measure(Path(name), int(args.gb * 10**9), args.processes, args.rounds)


def measure(folder: Path, num_bytes: int, processes: int, rounds: int) -> None:
    print(conditions())
    print(f"BF16 checkpoint of {num_bytes / 1e9:.1f} GB, {processes} processes, median of {rounds} rounds\n")
    columns = ("conversion", "s to start", "MB/s read and written", "the disk alone, MB/s", "share", "MB a CPU second")
    print("|", " | ".join(columns), "|\n" + "|---" * len(columns) + "|")
    wide = write_bf16(folder / "bf16", num_bytes)
    few = write_bf16(folder / "few", processes * 6 * 2**14, [(128, 128)] * 3)
    block = fp8.scheme_to_write(Strategy.block, powers_of_two=False)
    nothing = fp8.to_fp8(few, folder / "start", block)
    narrow = folder / "fp8"
    makers: dict[str, Callable[[Path], job.Job]] = {
        "bf16-to-fp8": lambda source: fp8.to_fp8(source, narrow, block),
        "fp8-to-bf16": lambda source: fp8.to_bf16(source, folder / "back"),
    }
    for name, make in makers.items():
        source = wide if name == "bf16-to-fp8" else narrow
        made = make(source)
        starts, rates, disk_rates, shares, per_cpu = [], [], [], [], []
        for _ in range(rounds):
            start, start_cpu = convert(nothing, processes, file_bytes=2**15)
            seconds, cpu = convert(made, processes)
            moved = (size(source) + size(made.destination)) / 1e6
            starts.append(start)
            rates.append(moved / (seconds - start))
            per_cpu.append(moved / (cpu - start_cpu))
            disk_rates.append(moved / bare(source, made.destination, folder / "bare", processes))
            shares.append(rates[-1] / disk_rates[-1])
        middle = [statistics.median(each) for each in (starts, rates, disk_rates, shares, per_cpu)]
        print("| {} | {:.1f} | {:.0f} | {:.0f} | {:.2f} | {:.0f} |".format(name, *middle), flush=True)


if __name__ == "__main__":
    main()
