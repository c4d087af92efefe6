"""Sparse against dense attention, forward and backward: how time and memory grow with the length of sequences.

    python benchmarks/dsa.py                        # sizes of a 744B-A40B model, 2k to 64k tokens, one GPU
    python benchmarks/dsa.py --longest 16384        # no longer ones
    python benchmarks/dsa.py --device cpu --tiny    # a second, to see that it runs

- dense: causal attention with the heads' own keys and values, as trainers compute it for queries that see no more keys
  than would be chosen; no way is measured with its projections;
- triton: attention to latents that the indexer chose, by the Triton kernels; on a CPU `plain`, torch's operations;
- stock: the same by FlashMLA and cuDNN-frontend, which trainers take where they can; a line says why not;
- indexer: its scores and the choice of the best, forward alone; a layer in four does this.

The first rows are a pack of sequences no longer than what is chosen: trainers took `triton` for it, and take `dense`.
cuDNN-frontend's kernels are compiled with nvidia-cutlass-dsl. Where its wheels were unpacked by hand, its folder
`nvidia_cutlass_dsl/dsl_packages` has to be on PYTHONPATH: a `.pth` file does that in a real site-packages alone.

Growth is the peak of allocated memory over the inputs, which are there before; their gradients are part of it. The
last column is the time over that of a sequence half as long: 4 where cost grows with the square, 2 where it is linear.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from machine import conditions
from torch import Tensor

from slime_megatron.sparse_attention.indexer import IndexQueries, select_keys
from slime_megatron.sparse_attention.plain import PlainSparseAttention
from slime_megatron.train.model.packed.context_parallel import runs_of_rank
from slime_megatron.transformer.attention.causal import Segments, causal_attention

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
    packs: tuple[tuple[int, int], ...]
    """Sequences, and tokens of each."""


REAL = Sizes(64, 256, 256, 512, 64, 32, 128, 2048, ((4, 2048), *((1, 2**power) for power in range(12, 17))))
TINY = Sizes(2, 16, 16, 32, 8, 4, 16, 32, ((4, 32), (1, 64), (1, 128), (1, 256)))


class Inputs:
    """Random tensors of a pack in bf16."""

    def __init__(self, sizes: Sizes, count: int, length: int, device: torch.device) -> None:
        self.sizes, self.lengths, self.num_tokens = sizes, [length] * count, count * length
        generator = torch.Generator(device).manual_seed(0)

        def normal(*shape: int) -> Tensor:
            return torch.randn(self.num_tokens, *shape, device=device, dtype=torch.bfloat16, generator=generator)

        self.heads = [normal(sizes.heads, size).requires_grad_() for size in (sizes.key, sizes.key, sizes.value)]
        whole = sizes.latent + sizes.rotary
        self.latents = [normal(sizes.heads, whole).requires_grad_(), normal(whole).requires_grad_()]
        self.index = IndexQueries(normal(sizes.index_heads, sizes.index_size), normal(sizes.index_heads).float())
        self.index_keys = normal(sizes.index_size)

    def choose(self) -> Tensor:
        borders = [number * self.lengths[0] for number in range(len(self.lengths) + 1)]
        topk = min(self.sizes.topk, max(self.lengths))
        return select_keys(self.index, self.index_keys, runs_of_rank(borders, 1, 0), topk)


def sparse_ways(inputs: Inputs) -> Iterator[tuple[str, Callable[[Tensor, Tensor, Tensor], Tensor]]]:
    """Of query, latents and chosen keys."""
    sizes, device = inputs.sizes, inputs.index_keys.device
    scale = sizes.key**-0.5
    if device.type == "cpu":
        yield "plain", lambda q, kv, chosen: PlainSparseAttention.apply(q, kv, chosen, scale, sizes.latent)
        return
    from slime_megatron.sparse_attention.kernels import TritonSparseAttention
    from slime_megatron.sparse_attention.stock import by_stock_kernels, stock_kernels

    yield "triton", lambda q, kv, chosen: TritonSparseAttention.apply(q, kv, chosen, scale, sizes.latent)
    shape = (sizes.heads, sizes.latent + sizes.rotary, sizes.latent, sizes.topk)
    if (kernels := stock_kernels(device, *shape)) is not None:
        yield "stock", lambda q, kv, chosen: by_stock_kernels(q, kv, chosen, scale, kernels)


def ways(inputs: Inputs) -> Iterator[tuple[str, Callable[[], object]]]:
    """What is measured, by name."""
    selected, device = inputs.choose(), inputs.index_keys.device
    attend, segments = causal_attention(device, torch.bfloat16), Segments.of(inputs.lengths, inputs.lengths, device)
    yield "dense", lambda: attend(*inputs.heads, segments, inputs.sizes.key**-0.5).sum().backward()
    for name, way in sparse_ways(inputs):
        yield name, lambda way=way: way(*inputs.latents, selected).sum().backward()
    yield "indexer", inputs.choose


def print_errors(inputs: Inputs) -> None:
    """Euclidean distances from float64, over its length, of what each way computes."""
    selected, sizes = inputs.choose(), inputs.sizes
    grad = torch.randn(inputs.num_tokens, sizes.heads, sizes.latent, device=selected.device).bfloat16()

    def computed(way: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype) -> list[Tensor]:
        tensors = [tensor.detach().to(dtype).requires_grad_() for tensor in inputs.latents]
        output = way(*tensors, selected)
        return [x.double() for x in (output.detach(), *torch.autograd.grad(output, tensors, grad.to(dtype)))]

    def plain(query: Tensor, latents: Tensor, chosen: Tensor) -> Tensor:
        return PlainSparseAttention.apply(query, latents, chosen, sizes.key**-0.5, sizes.latent)

    exact = computed(plain, torch.float64)
    found = {name: computed(way, torch.bfloat16) for name, way in sparse_ways(inputs)}
    print("\n| way | values | gradients of queries | of latents |\n|---|---|---|---|")
    for name, values in found.items():
        print(f"| {name} | {' | '.join(distances(values, exact))} |")
    if "stock" in found:
        print(f"| stock from triton | {' | '.join(distances(found['stock'], found['triton']))} |")


def distances(values: list[Tensor], exact: list[Tensor]) -> list[str]:
    return [f"{float((x - y).norm() / y.norm()):.1e}" for x, y in zip(values, exact, strict=True)]


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
| sequences | tokens each | way | ms | growth, GB | times one half as long |
|---|---|---|---|---|---|"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--longest", type=int, default=65536, help="tokens of a sequence")
    options = parser.parse_args()
    sizes, device = TINY if options.tiny else REAL, torch.device(options.device)
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    print(f"{conditions()}\n{sizes.heads} heads, {sizes.topk} keys a query, bf16", flush=True)
    list(sparse_ways(Inputs(sizes, 1, sizes.topk, device)))  # tries the stock kernels, and says what comes of it
    print(f"\n{HEAD}", flush=True)
    before: dict[tuple[str, int], float] = {}
    for count, length in sizes.packs:
        if length > options.longest:
            continue
        inputs = Inputs(sizes, count, length, device)
        for name, way in ways(inputs):
            seconds, growth = measure(way, inputs)
            half = before.get((name, count * length // 2)) if count == 1 else None
            ratio = f"{seconds / half:.1f}" if half else ""
            cells = (count, length, name, f"{1e3 * seconds:.1f}", f"{growth / 1e9:.3f}", ratio)
            print(f"| {' | '.join(map(str, cells))} |", flush=True)
            if count == 1:
                before[name, length] = seconds
    print_errors(Inputs(sizes, 1, sizes.topk + sizes.topk // 8, device))


if __name__ == "__main__":
    main()
