"""How fast `slime convert` goes beside the disk.

    python benchmarks/convert.py --gb 2 --processes 2      # a checkpoint of 2 GB; --folder names the disk

What the disk does is measured by as many processes that read the same source files and write as many bytes of zeros,
flushed, with no work between. The source is dropped from the page cache before each measurement. A round measures the
start of the command (a conversion of almost nothing), the conversion less that, and the disk, one after another, so
that all three see the same machine; given is the median of the rounds. The model is a layer of GLM-4.5-Air with as many
experts as fit the size: random BF16 weights, turned into FP8 and back, and into a checkpoint of Megatron-core and back.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from machine import conditions
from safetensors.torch import load_file, save_file

from slime.config.paths import resolve

PROMISED_SHARE = 0.7
"""Of the rate of the disk."""
MODEL = "pkg://slime_plugin_glm4/assets/GLM-4.5-Air"
SMALL = {
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 0,
    "vocab_size": 4096,
    "intermediate_size": 1024,
    "num_attention_heads": 16,
}
"""Beside the experts of one layer, next to nothing."""
CONVERSIONS = (
    ("bf16-to-fp8", "bf16", "fp8"),
    ("fp8-to-bf16", "fp8", "back"),
    ("hf-to-dist", "bf16", "dist"),
    ("dist-to-hf", "dist", "hf"),
)
"""Each with its source and its destination."""
FILE_GB = 0.25
BLOCK_BYTES = 2**23


def slime(*arguments: str | Path) -> tuple[float, float]:
    """Seconds of `slime convert`, and of the processors of all its processes."""
    start, used = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, "-m", "slime", "convert", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime


def write_bf16(folder: Path, num_bytes: int) -> None:
    """A checkpoint of random weights, in `folder/bf16`."""
    config = json.loads(resolve(f"{MODEL}/config.json").read_text()) | SMALL
    expert = 3 * 2 * config["hidden_size"] * config["moe_intermediate_size"]
    config["n_routed_experts"] = max(config["num_experts_per_tok"], num_bytes // expert)
    (folder / "config").mkdir(parents=True)
    (folder / "config/config.json").write_text(json.dumps(config))
    slime("random", folder / "config", folder / "bf16")
    for file in files(folder / "bf16"):  # they are fp32
        tensors = {name: tensor.bfloat16() for name, tensor in load_file(file).items()}
        save_file(tensors, file, metadata={"format": "pt"})


def files(folder: Path) -> list[Path]:
    """Those with weights."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".safetensors", ".distcp"))


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in files(folder))


def forget(folder: Path) -> None:
    """Drop a folder's files from the page cache."""
    for file in files(folder):
        with file.open("rb") as opened:
            os.fsync(opened.fileno())
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(work: tuple[Sequence[tuple[Path, int, int]], Path, float]) -> None:
    """Read parts of files, and write `ratio` bytes of zeros for each byte read."""
    sources, target, ratio = work
    block, zeros = memoryview(bytearray(BLOCK_BYTES)), memoryview(bytes(BLOCK_BYTES * 3))
    with target.open("wb", buffering=0) as out:
        for path, start, end in sources:
            with path.open("rb", buffering=0) as source:
                source.seek(start)
                while start < end and (count := source.readinto(block[: end - start])):
                    start += count
                    out.write(zeros[: int(count * ratio)])
        os.fsync(out.fileno())


def bare(source: Path, like: Path, folder: Path, processes: int) -> float:
    """Seconds of the disk alone, each process with its part of every file."""
    folder.mkdir()
    sizes, ratio = {path: path.stat().st_size for path in files(source)}, size(like) / size(source)
    parts = [
        [(path, n * r // processes, n * (r + 1) // processes) for path, n in sizes.items()] for r in range(processes)
    ]
    forget(source)
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        list(pool.map(time.sleep, [0.5] * processes))  # all have started
        start = time.perf_counter()
        list(pool.map(copy, [(part, folder / str(rank), ratio) for rank, part in enumerate(parts)]))
        seconds = time.perf_counter() - start
    shutil.rmtree(folder)
    return seconds


def convert(name: str, source: Path, destination: Path, processes: int) -> tuple[float, float]:
    """As `slime`; both with the start."""
    shutil.rmtree(destination, ignore_errors=True)
    forget(source)
    return slime(name, source, destination, f"--processes={processes}", f"--file-gb={FILE_GB}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=2.0, help="of the BF16 checkpoint")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="on the disk to measure")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        measure(Path(name), int(args.gb * 10**9), args.processes, args.rounds)


def measure(folder: Path, num_bytes: int, processes: int, rounds: int) -> None:
    few, many = folder / "few", folder / "many"
    write_bf16(few, 0)
    write_bf16(many, num_bytes)
    print(conditions())
    print(f"BF16 checkpoint of {size(many / 'bf16') / 1e9:.1f} GB, {processes} processes, median of {rounds} rounds\n")
    columns = ("conversion", "s to start", "MB/s read and written", "the disk alone, MB/s", "share", "MB a CPU second")
    print("|", " | ".join(columns), "|\n" + "|---" * len(columns) + "|")
    for name, source, destination in CONVERSIONS:
        starts, rates, disk_rates, shares, per_cpu = [], [], [], [], []
        for _ in range(rounds):
            start, start_cpu = convert(name, few / source, few / destination, processes)
            seconds, cpu = convert(name, many / source, many / destination, processes)
            moved, little = ((size(at / source) + size(at / destination)) / 1e6 for at in (many, few))
            starts.append(start)
            rates.append((moved - little) / (seconds - start))
            per_cpu.append((moved - little) / (cpu - start_cpu))
            disk_rates.append(moved / bare(many / source, many / destination, folder / "bare", processes))
            shares.append(rates[-1] / disk_rates[-1])
        middle = [statistics.median(each) for each in (starts, rates, disk_rates, shares, per_cpu)]
        print("| {} | {:.1f} | {:.0f} | {:.0f} | {:.2f} | {:.0f} |".format(name, *middle), flush=True)


if __name__ == "__main__":
    main()
