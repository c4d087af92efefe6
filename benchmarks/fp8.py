"""Quantising bf16 weights to FP8 in blocks: the share of the memory's rate, and that every byte is right.

    python benchmarks/fp8.py                        # the experts of a layer of GLM-5.2 and of DeepSeek-R1, one GPU
    python benchmarks/fp8.py --device cpu --tiny    # a second, to see that it runs
    python benchmarks/fp8.py --prepare              # without a GPU: what the host does for a matrix before the launches

The rate counts what must move: two bytes read and one written an element, and the scales; its time is that of the
device, all of a call being queued before it begins. The yardstick is `Tensor.copy_` of as many bytes. "in a row" is a
call among many that nobody waits for in between, as buckets follow each other in a publish; "alone" a single one until
the device is done, "host" until it returns. Bytes are compared with what a CPU makes of the same matrices.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import torch
from machine import conditions
from torch import Tensor

from slime_megatron.fp8_block import kernel
from slime_megatron.fp8_block.blocks import Quantized
from slime_megatron.fp8_block.quantizer import quantize

PROMISED_SHARE = 0.85
NUM_MEASURED = 20
QUEUE_CYCLES = 20_000_000
"""Of the GPU's clock: some 10 ms, longer than the host needs for a call."""
Shape = tuple[int, int]
REAL: dict[str, Sequence[Shape]] = {
    "GLM-5.2, 64 experts": [(2048, 6144), (2048, 6144), (6144, 2048)] * 64,
    "DeepSeek-R1, 32 experts": [(2048, 7168), (2048, 7168), (7168, 2048)] * 32,
    "one matrix 16384 x 6144": [(16384, 6144)],
}
TINY: dict[str, Sequence[Shape]] = {"4 small ones": [(256, 384), (130, 64)] * 2}


def measure(step: Callable[[], object], device: torch.device) -> tuple[float, float]:
    """Median seconds until the device is done, and until the host is."""
    done, returned = [], []
    for _ in range(3 + NUM_MEASURED):
        if device.type == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        returned.append(time.perf_counter() - start)
        if device.type == "cuda":
            torch.cuda.synchronize()
        done.append(time.perf_counter() - start)
    return statistics.median(done[3:]), statistics.median(returned[3:])


def in_a_row(step: Callable[[], object], device: torch.device) -> float:
    """Seconds of one of many calls that nobody waits for in between."""
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(NUM_MEASURED):
        step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / NUM_MEASURED


def on_device(step: Callable[[], object], device: torch.device) -> float:
    """Median seconds of the device alone: it waits until the host is done with the call. A CPU is its own host."""
    if device.type == "cpu":
        return measure(step, device)[0]
    seconds = []
    for _ in range(NUM_MEASURED):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(QUEUE_CYCLES)
        begin.record()
        step()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def preparing(shapes: Sequence[Shape]) -> float:
    """Median processor microseconds a matrix of `kernel.prepare` on a CPU, which touches no matrix."""
    matrices, seconds = [torch.empty(shape, dtype=torch.bfloat16) for shape in shapes], []
    for _ in range(NUM_MEASURED):
        start = time.process_time()
        kernel.prepare(matrices)
        seconds.append(time.process_time() - start)
    return 1e6 * statistics.median(seconds) / len(shapes)


def num_bytes(matrices: Sequence[Tensor]) -> int:
    """That must move to quantise these."""
    return sum(each.nbytes + weight.nbytes + scales.nbytes for each, (weight, scales) in quantized(matrices))


def quantized(matrices: Sequence[Tensor]) -> list[tuple[Tensor, Quantized]]:
    return list(zip(matrices, quantize(matrices), strict=True))


def is_exact(matrices: Sequence[Tensor]) -> bool:
    """Of the first three: their bytes are those that a CPU makes."""
    for (_, (weight, scales)), each in zip(quantized(matrices[:3]), matrices, strict=False):
        [(other, other_scales)] = quantize([each.cpu()])
        same = torch.equal(weight.cpu().view(torch.uint8), other.view(torch.uint8))
        if not (same and torch.equal(scales.cpu(), other_scales)):
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--prepare", action="store_true")
    options = parser.parse_args()
    print(f"{conditions()}\n")
    if options.prepare:
        for name, shapes in REAL.items():
            print(f"{name}: {preparing(shapes):.1f} us a matrix before the launches")
        return
    device = torch.device(options.device)
    columns = ("weights", "GB moved", "ms", "in a row", "alone", "host", "GB/s", "copy, GB/s", "share", "bytes")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    shares = []
    for name, shapes in (TINY if options.tiny else REAL).items():
        generator = torch.Generator(device).manual_seed(0)
        matrices = [torch.randn(shape, device=device, generator=generator).bfloat16() for shape in shapes]
        moved = num_bytes(matrices)
        source = torch.empty(moved // 2, dtype=torch.uint8, device=device)
        target = torch.empty_like(source)
        call = partial(quantize, matrices)
        row, (single, host) = in_a_row(call, device), measure(call, device)
        seconds, copying = on_device(call, device), on_device(partial(target.copy_, source), device)
        shares.append(copying / seconds)
        exact = "equal" if is_exact(matrices) else "DIFFER"
        rates = f"{moved / seconds / 1e9:.0f} | {moved / copying / 1e9:.0f} | {shares[-1]:.2f}"
        times = " | ".join(f"{1e3 * each:.2f}" for each in (seconds, row, single, host))
        print(f"| {name} | {moved / 1e9:.2f} | {times} | {rates} | {exact} |", flush=True)
        del matrices, source, target, call
    if device.type == "cuda" and not options.tiny:
        verdict = "kept" if min(shares) >= PROMISED_SHARE else "MISSED"
        print(f"\nleast share {min(shares):.2f}, promised {PROMISED_SHARE}: {verdict}")


if __name__ == "__main__":
    main()
