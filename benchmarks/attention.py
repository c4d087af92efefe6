"""Causal attention over packed sequences, forward and backward: flash attention beside cuDNN, by length and heads.

    python benchmarks/attention.py                        # 8k packed tokens, one GPU
    python benchmarks/attention.py --tokens 32768

Each row is a pack of sequences of one length, or of mixed ones (600 to 2,600 tokens). Flash attention takes a pack in
one call. cuDNN takes one sequence after the other, or all that are equal in one call, or what trainers make of the
pack: `Segments.calls`, the rest by flash attention. Before these calls trainers took flash attention
below `causal.LONG` tokens a sequence and cuDNN, one after the other, from there on.

The first pass over a pack is not in the medians; its seconds are in the last column, cuDNN's plans among them. The
rate counts half of the full square, and the backward pass as two and a half forward passes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence

import torch
from machine import conditions
from torch import Tensor

from slime_megatron.transformer.attention.causal import Attend, Segments, causal_attention, cudnn, flash

LENGTHS = (1024, 2048, 4096, 8192)
HEADS = ((32, 2, 128, 128), (20, 20, 256, 256), (64, 64, 256, 256), (16, 16, 192, 128))
"""Query heads, key-value heads, size of queries and keys, size of values."""
NUM_WARMUP, NUM_MEASURED = 2, 4


def one_by_one(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    """`Attend` by cuDNN, one whole sequence after the other."""
    sequences = zip(*(torch.split(x, list(segments.query_lengths)) for x in (query, key, value)), strict=True)
    return torch.cat([cudnn(q[None], k[None], v[None], scale)[0] for q, k, v in sequences])


def in_one_call(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float) -> Tensor:
    """`Attend` by cuDNN, for sequences of one length."""
    batch = (x.unflatten(0, (-1, segments.query_lengths[0])) for x in (query, key, value))
    return cudnn(*batch, scale).flatten(0, 1)


def milliseconds(way: Attend, lengths: Sequence[int], heads: tuple[int, int, int, int]) -> tuple[float, float]:
    """Median of the forward and backward passes over one pack, and the first of them in seconds."""
    num_heads, num_groups, size, value_size = heads
    segments = Segments.of(lengths, lengths, torch.device("cuda"))
    shapes = ((num_heads, size), (num_groups, size), (num_groups, value_size), (num_heads, value_size))
    *inputs, gradient = (torch.randn(sum(lengths), *shape, device="cuda", dtype=torch.bfloat16) for shape in shapes)
    inputs = [each.requires_grad_() for each in inputs]
    measured, began, first = [], time.perf_counter(), 0.0
    for number in range(NUM_WARMUP + NUM_MEASURED):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.autograd.grad(way(*inputs, segments, size**-0.5), inputs, gradient)
        end.record()
        torch.cuda.synchronize()
        measured.append(start.elapsed_time(end))
        first = first if number else time.perf_counter() - began
    return statistics.median(measured[NUM_WARMUP:]), first


def mixed(num_tokens: int) -> list[int]:
    """Of 600 to 2,600 tokens, as many as there are in a pack."""
    generator, lengths = torch.Generator().manual_seed(0), list[int]()
    while sum(lengths) < num_tokens:
        lengths.append(int(torch.randint(600, 2601, (), generator=generator)))
    return lengths


HEAD = """\
| heads | key-value heads | sizes | tokens each | flash, ms | cuDNN one by one | in one call | trainers | TFLOP/s \
| flash over trainers | first, s |
|---|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=8192, help="of a pack")
    tokens = parser.parse_args().tokens
    print(f"{conditions()}, cuDNN {torch.backends.cudnn.version()}\n{tokens} packed tokens, bf16\n\n{HEAD}")
    trainers = causal_attention(torch.device("cuda"), torch.bfloat16)
    for heads in HEADS:
        num_heads, num_groups, size, value_size = heads
        packs = {str(length): [length] * (tokens // length) for length in LENGTHS} | {"mixed": mixed(tokens)}
        for name, lengths in packs.items():
            ways = [flash(), one_by_one, in_one_call] if name != "mixed" else [flash()]
            row = [f"{milliseconds(way, lengths, heads)[0]:.2f}" for way in ways] + [""] * (3 - len(ways))
            taken, first = milliseconds(trainers, lengths, heads)
            flops = 3.5 * sum(length**2 for length in lengths) * num_heads * (size + value_size)
            row += [f"{taken:.2f}", f"{flops / taken / 1e9:.0f}", f"{float(row[0]) / taken:.2f}", f"{first:.1f}"]
            print(f"| {num_heads} | {num_groups} | {size}, {value_size} | {name} | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
