"""Sparse against dense attention, forward and backward: how time and memory grow with the length of one sequence.

    python benchmarks/dsa.py                        # sizes of a 744B-A40B model, 4k to 64k tokens, one GPU
    python benchmarks/dsa.py --device cpu --tiny    # a second, to see that it runs

- dense: torch's causal attention with the heads' own keys and values, as latent attention to all keys computes it;
- sparse: `sparse_attention` over latents, with keys that the indexer chose;
- indexer: its scores of all causal keys and the choice of the best, forward alone; a layer in four does this.

Growth is the peak of allocated memory over the inputs, which are there before; their gradients are part of it. The
last column is the time over that of half as many tokens: 4 where cost grows with the square, 2 where it is linear.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from machine import conditions
from torch import Tensor

from slime.models.packed.context_parallel import RowRange
from slime_plugin_sparse_attention.indexer import IndexQueries, select_keys
from slime_plugin_sparse_attention.sparse_attention import sparse_attention

NUM_MEASURED = 3


@dataclass(frozen=True)
class Sizes:
    """`key` and `value` are of dense heads, `latent` and `rotary` of sparse keys."""

    heads: int
    key: int
    value: int
    latent: int
    rotary: int
    index_heads: int
    index_size: int
    topk: int
    tokens: tuple[int, ...]


REAL = Sizes(64, 256, 256, 512, 64, 32, 128, 2048, (4096, 8192, 16384, 32768, 65536))
TINY = Sizes(2, 16, 16, 32, 8, 4, 16, 32, (64, 128, 256))


class Inputs:
    """Random tensors of one sequence in bf16."""

    def __init__(self, sizes: Sizes, num_tokens: int, device: torch.device) -> None:
        self.sizes, self.num_tokens = sizes, num_tokens
        generator = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(num_tokens, *shape, device=device, dtype=torch.bfloat16, generator=generator)

        self.heads = [normal(sizes.heads, size).requires_grad_() for size in (sizes.key, sizes.key, sizes.value)]
        whole = sizes.latent + sizes.rotary
        self.latents = [normal(sizes.heads, whole).requires_grad_(), normal(whole).requires_grad_()]
        self.index = IndexQueries(normal(sizes.index_heads, sizes.index_size), normal(sizes.index_heads).float())
        self.index_keys = normal(sizes.index_size)

    def choose(self) -> Tensor:
        topk = min(self.sizes.topk, self.num_tokens)
        return select_keys(self.index, self.index_keys, [RowRange(0, 0, self.num_tokens)], topk)


def ways(inputs: Inputs) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured, by name."""
    selected, sizes = inputs.choose(), inputs.sizes

    def dense() -> None:
        query, key, value = (x.transpose(0, 1)[None] for x in inputs.heads)
        F.scaled_dot_product_attention(query, key, value, is_causal=True).sum().backward()

    def sparse() -> None:
        sparse_attention(*inputs.latents, selected, sizes.key**-0.5, sizes.latent).sum().backward()

    yield from (("dense", dense), ("sparse", sparse), ("indexer", inputs.choose))


def measure(way: Callable[[], object], inputs: Inputs) -> tuple[float, int]:
    """Median seconds, and the growth of memory in bytes (0 without a GPU)."""
    on_gpu, seconds, growth = inputs.index_keys.is_cuda, [], 0
    for _ in range(1 + NUM_MEASURED):
        for tensor in (*inputs.heads, *inputs.latents):
            tensor.grad = None
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        start = time.perf_counter()
        way()
        if on_gpu:
            torch.cuda.synchronize()
            growth = torch.cuda.max_memory_allocated() - before
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:]), growth


HEAD = """\
| tokens | way | ms | growth, GB | times half as many tokens |
|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    sizes = TINY if options.tiny else REAL
    print(f"{conditions()}\n{sizes.heads} heads, {sizes.topk} keys a query, bf16\n\n{HEAD}", flush=True)
    before: dict[str, float] = {}
    for num_tokens in sizes.tokens:
        inputs = Inputs(sizes, num_tokens, torch.device(options.device))
        for name, way in ways(inputs):
            seconds, growth = measure(way, inputs)
            ratio = f"{seconds / before[name]:.1f}" if name in before else ""
            print(f"| {num_tokens} | {name} | {1e3 * seconds:.1f} | {growth / 1e9:.3f} | {ratio} |", flush=True)
            before[name] = seconds


if __name__ == "__main__":
    main()
