"""Causal attention over packed sequences, forward and backward: flash attention beside cuDNN, by length and heads.

    python benchmarks/attention.py                        # 32k packed tokens, one GPU

Each row is a pack of sequences of one length. Trainers take cuDNN from `causal_attention.LONG` tokens a sequence on.
The rate counts half of the full square, and the backward pass as two and a half forward passes.
"""

from __future__ import annotations

import statistics

import torch
from machine import conditions

from slime.models.packed.causal_attention import LONG, Attend, Segments, cudnn, flash

NUM_TOKENS = 32768
LENGTHS = (2048, 4096, 8192, 32768)
HEADS = ((32, 2, 128, 128), (16, 16, 64, 64), (16, 16, 192, 128), (16, 16, 256, 256))
"""Query heads, key-value heads, size of queries and keys, size of values."""
NUM_WARMUP, NUM_MEASURED = 2, 4


def milliseconds(way: Attend, length: int, heads: tuple[int, int, int, int]) -> float:
    """Median of the forward and backward passes over one pack."""
    num_heads, num_groups, size, value_size = heads
    lengths = [length] * (NUM_TOKENS // length)
    segments = Segments.of(lengths, lengths, torch.device("cuda"))
    shapes = ((num_heads, size), (num_groups, size), (num_groups, value_size), (num_heads, value_size))
    *inputs, gradient = (torch.randn(NUM_TOKENS, *shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    inputs = [each.requires_grad_() for each in inputs]
    measured = []
    for _ in range(NUM_WARMUP + NUM_MEASURED):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.autograd.grad(way(*inputs, segments, size**-0.5), inputs, gradient)
        end.record()
        torch.cuda.synchronize()
        measured.append(start.elapsed_time(end))
    return statistics.median(measured[NUM_WARMUP:])


def main() -> None:
    print(f"{conditions()}, cuDNN {torch.backends.cudnn.version()}\n{NUM_TOKENS} packed tokens, bf16\n")
    print("| heads | key-value heads | sizes | tokens a sequence | flash, ms | cuDNN, ms | TFLOP/s | times as fast |")
    print("|---|---|---|---|---|---|---|---|")
    for heads in HEADS:
        num_heads, num_groups, size, value_size = heads
        for length in LENGTHS:
            flops = 3.5 * NUM_TOKENS * length * num_heads * (size + value_size)
            by_flash, by_cudnn = (milliseconds(way, length, heads) for way in (flash(), cudnn))
            taken = by_cudnn if length >= LONG else by_flash
            print(
                f"| {num_heads} | {num_groups} | {size}, {value_size} | {length} | {by_flash:.1f} | {by_cudnn:.1f} "
                f"| {flops / taken / 1e9:.0f} | {by_flash / by_cudnn:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
