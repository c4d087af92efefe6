"""What the experts of a rank cost beside their products: weight gradients in each way, and rows on their way.

    python benchmarks/experts.py                    # weight gradients at published widths, one GPU
    python benchmarks/experts.py --ranks 2          # and the exchange of rows between two GPUs
    python benchmarks/experts.py --device cpu --tiny --ranks 2   # a few seconds, to see that it runs

Weight gradients are those of all experts, added to fp32 sums as trainers add them; each expert has a random number of
rows around the mean, the same in every way:

- triton: one call of the kernel of `slime_megatron.mixture_of_experts.kernels`, on a GPU alone;
- one by one: a call of cuBLAS (on a CPU: of torch) for each expert;
- two streams: the same, every other one on a second stream, on a GPU alone.

Trainers take the first up to `SMALL_PRODUCT` operations an expert and the last above; the column `taken` says which.
Relative error is the Euclidean distance from float64 sums, of all experts together.

Rows are exchanged as a layer does it, an equal number with each rank; the bytes are those that a rank sends to others.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from machine import conditions
from torch import Tensor

from slime.net import file_store
from slime_megatron.mixture_of_experts.exchange import Exchange
from slime_megatron.mixture_of_experts.grouped import SMALL_PRODUCT, add_on_two_streams, add_one_by_one
from slime_testing.ranks import Rank, run_ranks

NUM_MEASURED = 5
SPREAD = 0.3
"""Of the numbers of rows: they lie within so much of the mean."""


@dataclass(frozen=True)
class Case:
    """Mean rows of an expert, and the [k, n] of its matrix."""

    experts: int
    rows: int
    k: int
    n: int


REAL = [
    Case(32, 512, 2048, 3072),
    Case(32, 2048, 2048, 3072),
    Case(32, 2048, 1536, 2048),
    Case(64, 1024, 2048, 3072),
    Case(64, 1024, 1536, 2048),
    Case(16, 4096, 2048, 3072),
    Case(16, 4096, 1536, 2048),
    Case(64, 2048, 4096, 2816),
    Case(64, 2048, 1408, 4096),
]
TINY = [Case(4, 16, 32, 48), Case(8, 8, 48, 32)]
SENT = [(16384, 2048), (65536, 2048), (32768, 4096)]
"""Rows that a rank has for all experts, and their width in bf16."""
SENT_TINY = [(64, 32)]


class Inputs:
    """Of a case: sizes of the groups, totals [g, k, n] fp32, rows [r, k] and their gradients [r, n] bf16."""

    def __init__(self, case: Case, device: torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        shares = 1 + SPREAD * (2 * torch.rand(case.experts, generator=generator) - 1)
        self.sizes = (case.rows * shares).round().int().tolist()
        self.ends = torch.tensor(self.sizes).cumsum(0).to(device, torch.int32)
        self.totals = torch.zeros(case.experts, case.k, case.n, device=device)
        options = {"device": device, "dtype": torch.bfloat16}
        self.rows, self.gradient = (torch.randn(sum(self.sizes), width, **options) for width in (case.k, case.n))

    def products(self) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of each expert: its total, its rows, its gradients."""
        parts = (torch.split(each, self.sizes) for each in (self.rows, self.gradient))
        return list(zip(self.totals, *parts, strict=True))

    def exact(self) -> Tensor:
        parts = [(rows.double().t() @ gradient.double()) for _, rows, gradient in self.products()]
        return torch.stack(parts)


def ways(inputs: Inputs) -> Iterator[tuple[str, Callable[[], None]]]:
    if inputs.rows.is_cuda:
        from slime_megatron.mixture_of_experts.kernels import add_weight_gradients

        given = inputs.totals, inputs.rows, inputs.gradient, inputs.ends
        yield "triton", lambda: add_weight_gradients(*given)
        yield "two streams", lambda: add_on_two_streams(inputs.products())
    yield "one by one", lambda: add_one_by_one(inputs.products())


def seconds_of(way: Callable[[], object], device: torch.device) -> float:
    """The median of some calls behind one for warm-up."""
    found = []
    for _ in range(1 + NUM_MEASURED):
        _wait(device)
        start = time.perf_counter()
        way()
        _wait(device)
        found.append(time.perf_counter() - start)
    return statistics.median(found[1:])


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def print_weight_gradients(cases: list[Case], device: torch.device) -> None:
    print("| experts | rows each | k x n | way | ms | TFLOP/s | relative error | taken |")
    print("|---|---|---|---|---|---|---|---|")
    for case in cases:
        inputs = Inputs(case, device)
        exact = inputs.exact()
        per_expert = len(inputs.rows) / case.experts * case.k * case.n
        taken = ("triton" if per_expert <= SMALL_PRODUCT else "two streams") if inputs.rows.is_cuda else "one by one"
        for name, way in ways(inputs):
            inputs.totals.zero_()
            way()
            error = float((inputs.totals.double() - exact).norm() / exact.norm())
            seconds = seconds_of(way, device)
            rate = 2 * case.experts * per_expert / seconds / 1e12
            cells = [case.experts, case.rows, f"{case.k} x {case.n}", name, f"{1e3 * seconds:.2f}", f"{rate:.3g}"]
            print(f"| {' | '.join(map(str, cells))} | {error:.1e} | {'yes' if name == taken else ''} |", flush=True)


def exchange(rank: Rank, sent: list[tuple[int, int]], device_type: str) -> list[float]:
    """Seconds of each exchange. Runs in a process of its own."""
    device = torch.device(device_type, rank.rank) if device_type == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend, store = "nccl" if device.type == "cuda" else "gloo", file_store(rank.master_addr, timedelta(seconds=60))
    dist.init_process_group(backend, store=store, rank=rank.rank, world_size=rank.world_size)
    found = []
    for num_rows, width in sent:
        rows = torch.randn(num_rows, width, device=device, dtype=torch.bfloat16)
        counts = [num_rows // rank.world_size] * rank.world_size

        def way(rows: Tensor = rows, counts: list[int] = counts) -> None:
            leaving = Exchange(dist.group.WORLD, counts, counts)
            leaving.arrive(leaving.depart(rows))

        found.append(seconds_of(way, device))
    dist.destroy_process_group()
    return found


def print_exchange(sent: list[tuple[int, int]], ranks: int, device_type: str) -> None:
    found = run_ranks(exchange, ranks, sent, device_type, timeout_s=120)
    print("\n| ranks | rows | width | MB sent | ms | GB/s |\n|---|---|---|---|---|---|")
    for (num_rows, width), seconds in zip(sent, map(max, zip(*found, strict=True)), strict=True):
        size = 2 * num_rows * width * (ranks - 1) / ranks
        cells = [ranks, num_rows, width, f"{size / 1e6:.3g}", f"{1e3 * seconds:.3f}", f"{size / seconds / 1e9:.3g}"]
        print(f"| {' | '.join(map(str, cells))} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--ranks", type=int, default=1, help="over which rows are exchanged")
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    print(f"{conditions()}\nbf16, fp32 sums, rows of an expert within {SPREAD:.0%} of the mean\n")
    print_weight_gradients(TINY if options.tiny else REAL, torch.device(options.device))
    if options.ranks > 1:
        print_exchange(SENT_TINY if options.tiny else SENT, options.ranks, options.device)


if __name__ == "__main__":
    main()
