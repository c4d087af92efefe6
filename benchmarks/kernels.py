"""Where the time of a training step goes on the device, by kind of kernel."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch

KINDS = (
    ("exchange of tokens", r"nccl.*(sendrecv|alltoall)"),
    ("gathers of token counts and weights, and waiting for them", r"nccl.*allgather"),
    ("sums over ranks", r"nccl"),
    ("attention", r"flash|fmha|sdpa|attention"),
    ("grouped products", r"group"),
    ("other products", r"gemm|nvjet|cutlass|xmma|cublas|gemv|splitk"),
    ("Adam, norms and scaling of gradients", r"multi_tensor|adam"),
    ("sorting and counting", r"sort|radix|scan|topk|histogram|bincount|unique"),
    ("permutation", r"index|gather|scatter|permut|masked"),
    ("joining and splitting", r"catarray|cat_|concat|split"),
    ("copies and casts", r"memcpy|memset|copy|fillfunctor|float8_copy"),
    ("reductions", r"reduce|norm|softmax"),
    ("kernels of Triton", r"triton|^_[a-z]"),
)
"""Kinds and what the names of their kernels have in them, in lower case; the first that is found counts."""
OTHER = "element by element, and the rest"
SHOWN, SHOWN_GAPS = 60, 15


class Kernel(NamedTuple):
    """One run of a kernel, in microseconds."""

    name: str
    start: float
    end: float


def kind_of(name: str) -> str:
    return next((kind for kind, pattern in KINDS if re.search(pattern, name.lower())), OTHER)


def union(kernels: Iterable[Kernel]) -> float:
    """Microseconds in which at least one of them ran."""
    busy, until = 0.0, float("-inf")
    for kernel in sorted(kernels, key=lambda one: one.start):
        busy += max(0.0, kernel.end - max(kernel.start, until))
        until = max(until, kernel.end)
    return busy


def by_kind(kernels: Sequence[Kernel], wall_ms: float) -> str:
    """Milliseconds of each kind, and of the step in which the device ran nothing.

    "Alone" is the time in which no kernel of another kind ran: what an exchange costs that is hidden behind products is
    not in it.
    """
    kinds: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        kinds.setdefault(kind_of(kernel.name), []).append(kernel)
    busy = union(kernels) / 1e3
    lines = ["| kind | ms | alone, ms | of the step | kernels |", "|---|---|---|---|---|"]
    for kind, own in sorted(kinds.items(), key=lambda item: -sum(one.end - one.start for one in item[1])):
        others = union(one for name, several in kinds.items() if name != kind for one in several) / 1e3
        spent, alone = sum(one.end - one.start for one in own) / 1e3, busy - others
        lines.append(f"| {kind} | {spent:.1f} | {alone:.1f} | {alone / wall_ms:.1%} | {len(own)} |")
    idle = max(0.0, wall_ms - busy)
    lines.append(f"| nothing runs | {idle:.1f} | {idle:.1f} | {idle / wall_ms:.1%} | |")
    return "\n".join([*lines, f"| step | {wall_ms:.1f} | | | {len(kernels)} |"])


def gaps(kernels: Sequence[Kernel]) -> str:
    """Where the device ran nothing, by the kernels before and after it: the pairs between which most time passed."""
    pairs: dict[tuple[str, str], list[float]] = {}
    before = None
    for kernel in sorted(kernels, key=lambda one: one.start):
        if before is not None and kernel.start > before.end:
            pairs.setdefault((before.name[:50], kernel.name[:50]), []).append(kernel.start - before.end)
        before = kernel if before is None or kernel.end > before.end else before
    lines = ["nothing runs, ms  times  between"]
    for (one, other), spent in sorted(pairs.items(), key=lambda item: -sum(item[1]))[:SHOWN_GAPS]:
        lines.append(f"{sum(spent) / 1e3:>16.2f}{len(spent):>7}  {one} | {other}")
    return "\n".join(lines)


def longest(kernels: Iterable[Kernel]) -> str:
    """The kernels that take longest, by name."""
    names: dict[str, list[float]] = {}
    for kernel in kernels:
        names.setdefault(kernel.name, []).append(kernel.end - kernel.start)
    ranked = sorted(names.items(), key=lambda item: -sum(item[1]))
    total = sum(sum(spent) for spent in names.values())
    lines = [f"{'ms':>9}{'share':>7}{'calls':>7}  kernel (of {total / 1e3:.1f} ms on the device)"]
    lines += [
        f"{sum(spent) / 1e3:>9.2f}{sum(spent) / total:>7.1%}{len(spent):>7}  {name[:150]}"
        for name, spent in ranked[:SHOWN]
    ]
    return "\n".join(lines)


def profile(step: Callable[[], Any]) -> str:
    """The tables of one step, which waits for the device. What the host does is not recorded: that would slow it."""
    device = torch.profiler.ProfilerActivity.CUDA if torch.cuda.is_available() else torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[device]) as profiler:
        start = time.perf_counter()
        step()
        wall_ms = (time.perf_counter() - start) * 1e3
    kernels = [
        Kernel(event.name, event.time_range.start, event.time_range.end)
        for event in profiler.events()
        if event.device_type == torch.autograd.DeviceType.CUDA and not event.is_user_annotation
    ]
    return f"{by_kind(kernels, wall_ms)}\n\n{longest(kernels)}\n\n{gaps(kernels)}"
