"""How evenly sequences are packed: micro-batches against the fewest possible, and work against its mean over ranks.

    python benchmarks/packing.py                       # attention as much work as the rest at 24,576 tokens
    python benchmarks/packing.py --attention 53581     # as GLM-4-9B's
    python benchmarks/packing.py --only arrays         # or sequences, families, prompts, turns

`bound` is a number of micro-batches that no packing can go below, a multiple of the ranks. `work` is that of the
busiest rank over the mean; `waiting` the same where ranks wait for the slowest of them at every micro-batch, as those
do that share experts. `least`: no packing can have less waiting, because of the largest sequences. `ms` is of the
processor, the least of three. Work is n + n^2 / attention tokens for a sequence of n, or for a family what
`slime.plan.flops.attention` says: "by one length" was packed as if attention were a line that is right for the longest.
`turns`: attempts whose history is rewritten at each turn, so that every turn is a segment: a prompt, as many tokens of
history for each turn before, and an answer, which is trained. `rows` are computed, `gain` is tokens over rows.
`arrays`: the whole of `slime.train.packing.pack`, with two columns, and how many bytes it writes.

Beside it, from the same lengths, the packers of other trainers, implemented here from their descriptions: first fit in
the order of arrival (slime, miles), best fit decreasing (TRL), and Karmarkar and Karp's differencing over as many
micro-batches as the tokens need (verl; 2,048 sequences only). Their micro-batches are dealt to ranks in turn; `over`
counts those above the cap.
"""

from __future__ import annotations

import argparse
import dataclasses
import heapq
import math
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from machine import conditions

from slime import plugins
from slime.compose.compose import examine
from slime.config.hf import config_folder
from slime.config.schema import LossMean
from slime.models.blocks import Attention
from slime.plan.flops import attention
from slime.train.bins import Shape, Unit, share_out
from slime.train.fill import fewest
from slime.train.packing import pack
from slime.types import TrainSample

LONGEST, SEED, TIMES = 32768, 7, 3
FAMILIES = (("glm5.2", "h100x256"), ("gemma3-1b", "rtx4090x1"))
SIZES = ((2048, 32768, 1), (2048, 32768, 8), (2048, 32768, 64), (8192, 32768, 64), (8192, 65536, 64))
COLUMNS = " micro-batches | bound | work | waiting | least | ms |"
OTHERS = " first fit: micro-batches, waiting | best fit decreasing | differencing: micro-batches, over, waiting |"
TABLES = ("sequences", "families", "prompts", "turns", "arrays")
T = TypeVar("T")
Lengths = Callable[[np.random.Generator, int], np.ndarray]
LENGTHS: dict[str, Lengths] = {
    "equal": lambda generator, count: np.full(count, 5000),
    "uniform": lambda generator, count: generator.integers(100, 10_000, count),
    "lognormal": lambda generator, count: generator.lognormal(math.log(3000), 1.0, count),
    "long tail": lambda generator, count: 500 * (1 + generator.pareto(1.1, count)),
    "two kinds": lambda generator, count: np.where(generator.random(count) < 0.9, 1500, LONGEST),
}
"""Tokens of a sequence, of which the longest is cut; of "two kinds" a tenth reaches the limit."""


def samples_of(lengths: Sequence[int], prompts: Sequence[int]) -> list[TrainSample]:
    """Sequences without contents, each with the first tokens of the number of its prompt."""
    rows = {prompt: np.full(max(lengths), prompt) for prompt in set(prompts)}
    pairs = zip(lengths, prompts, strict=True)
    return [TrainSample(rows[prompt][:n], np.broadcast_to(np.float32(1), n - 200)) for n, prompt in pairs]


def drawn(name: str, count: int) -> list[int]:
    lengths = LENGTHS[name](np.random.default_rng(SEED), count)
    return [int(length) for length in np.clip(lengths, 220, LONGEST)]


def packed(samples: Sequence[TrainSample], shape: Shape) -> tuple[list[list[list[Unit]]], float]:
    """The units of every rank's micro-batches, and milliseconds of processor time."""
    return timed(lambda: share_out(samples, range(len(samples)), shape))


def timed(call: Callable[[], T]) -> tuple[T, float]:
    """The least of a few times: a machine that is shared only adds to them."""
    taken = math.inf
    for _ in range(TIMES):
        found = None  # what was found before need not be held beside it
        start = time.process_time()
        found = call()
        taken = min(taken, 1000 * (time.process_time() - start))
    assert found is not None
    return found, taken


def row(samples: Sequence[TrainSample], shape: Shape, by: Shape | None = None) -> str:
    """Of what is packed `by` a shape with other work, if that is given."""
    by_rank, milliseconds = packed(samples, by or shape)
    count = sum(map(len, by_rank))
    units = [unit for of_rank in by_rank for units in of_rank for unit in units]
    sizes = shape.sizes(samples, units)
    bound = fewest(sizes.rows, shape.max_tokens, shape.num_dp)
    work = np.asarray([[shape.sizes(samples, units).work.sum() for units in of] for of in by_rank])
    busiest, waiting = work.sum(1).max() / work.sum(1).mean(), work.max(0).sum() / work.sum(1).mean()
    least = least_waiting(sizes.rows, sizes.work, shape)
    return f"{count:,} | {bound:,} | {busiest:.3f} | {waiting:.3f} | {least:.3f} | {milliseconds:.0f} |"


def least_waiting(rows: np.ndarray, work: np.ndarray, shape: Shape) -> float:
    """Below which no packing comes: no two units above half of the cap stand together, so the largest of every `num_dp`
    of them set the length of a round, under which so much of all else finds room as the cap and that length leave."""
    order = np.argsort(-work, kind="stable")
    rows, work = rows[order], work[order]
    mean = found = work.sum() / shape.num_dp
    num_large = int((2 * rows[: np.argmax(2 * rows <= shape.max_tokens) or None] > shape.max_tokens).sum())
    for large in range(shape.num_dp, num_large + shape.num_dp, shape.num_dp):
        count = min(large, num_large)
        heights = work[:count][:: shape.num_dp]
        there = np.zeros((2, len(heights) * shape.num_dp))
        there[:, :count] = rows[:count], work[:count]
        densest = (work[count:] / rows[count:]).max(initial=1)
        beside = np.minimum(np.repeat(heights, shape.num_dp) - there[1], (shape.max_tokens - there[0]) * densest).sum()
        found = max(found, heights.sum() + max(0.0, work[count:].sum() - beside) / shape.num_dp)
    return float(found / mean)


def others(lengths: Sequence[int], shape: Shape) -> str:
    cells = []
    for their in (first_fit, best_fit_decreasing, differencing):
        if their is differencing and len(lengths) > 2048:
            cells.append("-")
            continue
        bins = their(lengths, shape.max_tokens)
        filled = np.asarray([sum(lengths[i] for i in content) for content in bins])
        work = [float(shape.work(np.asarray([lengths[i] for i in content])).sum()) for content in bins]
        work += [0.0] * (-len(bins) % shape.num_dp)
        table = np.asarray(work).reshape(-1, shape.num_dp)
        over = f"{int((filled > shape.max_tokens).sum())}, " if their is differencing else ""
        cells.append(f"{len(work):,}, {over}{table.max(1).sum() * shape.num_dp / table.sum():.3f}")
    return f" {' | '.join(cells)} |"


def first_fit(lengths: Sequence[int], cap: int) -> list[list[int]]:
    bins, room = list[list[int]](), np.zeros(0, np.int64)
    for i, length in enumerate(lengths):
        fits = np.flatnonzero(room >= length)
        if not len(fits):
            bins.append([])
            room, fits = np.append(room, cap), np.asarray([len(bins) - 1])
        bins[fits[0]].append(i)
        room[fits[0]] -= length
    return bins


def best_fit_decreasing(lengths: Sequence[int], cap: int) -> list[list[int]]:
    bins, rooms = list[list[int]](), list[tuple[int, int]]()
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        place = bisect_left(rooms, (lengths[i], -1))
        if place == len(rooms):
            bins.append([])
            rooms.append((cap, len(bins) - 1))
        room, number = rooms.pop(place)
        bins[number].append(i)
        insort(rooms, (room - lengths[i], number))
    return bins


def differencing(lengths: Sequence[int], cap: int) -> list[list[int]]:
    """Partitions with the largest differences between their parts are joined, the largest part to the smallest."""
    num_bins = math.ceil(sum(lengths) / cap)
    waiting = [(-n, i, [(n, [i])] + [(0, list[int]()) for _ in range(num_bins - 1)]) for i, n in enumerate(lengths)]
    heapq.heapify(waiting)
    while len(waiting) > 1:
        (_, number, one), (_, _, other) = heapq.heappop(waiting), heapq.heappop(waiting)
        parts = [(a + b, left + right) for (a, left), (b, right) in zip(one, reversed(other), strict=True)]
        parts.sort(key=lambda part: -part[0])
        heapq.heappush(waiting, (parts[-1][0] - parts[0][0], number, parts))
    return [content for _, content in waiting[0][2]]


def sequences(attends: Sequence[Attention]) -> Iterator[str]:
    yield f"| lengths | sequences, cap, ranks |{COLUMNS}{OTHERS}\n{11 * '|---'}|"
    for name in LENGTHS:
        for count, cap, num_dp in SIZES:
            lengths, shape = drawn(name, count), Shape(num_dp, 1, 1, cap, False, attends)
            ours = row(samples_of(lengths, [0] * count), shape)
            yield f"| {name} | {count:,}, {cap:,}, {num_dp} | {ours}{others(lengths, shape)}"


def families() -> Iterator[str]:
    yield f"| family, lengths | packed |{COLUMNS}\n{8 * '|---'}|"
    for model, cluster in FAMILIES:
        cfg = examine([f"+model={model}", f"+cluster={cluster}"]).cfg
        cfg.model.path = config_folder(cfg.model)
        shape = Shape(64, 1, 1, LONGEST, False, attention(cfg.model, cfg.train.megatron, plugins.load()))
        beside = float(shape.work(np.asarray([LONGEST]))[0]) / LONGEST - 1
        line = dataclasses.replace(shape, attention=(Attention(2 * beside / LONGEST),))
        for name in ("lognormal", "long tail", "two kinds"):
            samples = samples_of(drawn(name, 8192), [0] * 8192)
            for by, what in ((line, "by one length"), (shape, "by its work")):
                yield f"| {model}, {name} | {what} | {row(samples, shape, by)}"


def prompts(attends: Sequence[Attention]) -> Iterator[str]:
    yield f"| groups of 16, prompt 200 | prompts |{COLUMNS}\n{8 * '|---'}|"
    samples = samples_of(drawn("lognormal", 8192), [number // 16 for number in range(8192)])
    for num_dp in (1, 8, 64):
        for shares in (False, True):
            what, shape = "shared" if shares else "apart", Shape(num_dp, 1, 1, LONGEST, shares, attends)
            yield f"| 8,192, {LONGEST:,}, {num_dp} | {what} | {row(samples, shape)}"


def turns(attends: Sequence[Attention]) -> Iterator[str]:
    yield f"| attempts, turns, history, answer | tokens | segments | rows | gain |{COLUMNS}\n{11 * '|---'}|"
    for attempts, count, history, answer in ((8, 1, 0, 1024), (8, 4, 1024, 256), (8, 8, 512, 128), (1, 8, 512, 128)):
        samples = turned(1024 // attempts, attempts, count, history, answer)
        num_tokens = sum(sample.num_tokens for sample in samples)
        for shares in (False, True):
            shape = Shape(8, 1, 1, LONGEST, shares, attends)
            by_rank, _ = packed(samples, shape)
            rows = num_tokens - sum(sum(unit.shared) for of_rank in by_rank for units in of_rank for unit in units)
            what = f"{attempts}, {count}, {history:,}, {answer:,} | {num_tokens:,} | {'shared' if shares else 'apart'}"
            yield f"| {what} | {rows:,} | {num_tokens / rows:.2f} | {row(samples, shape)}"


def turned(num_groups: int, attempts: int, count: int, history: int, answer: int) -> list[TrainSample]:
    """Segments of attempts whose histories are rewritten, behind prompts of 2,048 tokens."""
    generator, found, mask = np.random.default_rng(SEED), list[TrainSample](), np.ones(answer, np.float32)
    for group in range(num_groups):
        prompt = generator.integers(0, 150_000, 2048)
        for attempt in range(attempts):
            before = [prompt]
            for _ in range(count):
                tokens = np.concatenate([*before, generator.integers(0, 150_000, answer)])
                found.append(TrainSample(tokens, mask, attempt=group * attempts + attempt))
                before.append(generator.integers(0, 150_000, history))
    return found


def arrays(attends: Sequence[Attention]) -> Iterator[str]:
    yield f"| 8,192 sequences, arrays | tokens | prompts | MB | ms | to copy as many bytes: ms |\n{6 * '|---'}|"
    generator = np.random.default_rng(SEED)
    for name, shares in (("lognormal / 8", False), ("lognormal / 8", True), ("lognormal", False), ("lognormal", True)):
        lengths = [max(220, length // (8 if "/" in name else 1)) for length in drawn("lognormal", 8192)]
        prompt = [generator.integers(0, 150_000, 200) for _ in range(512)]
        samples = []
        for number, length in enumerate(lengths):
            columns = {key: generator.random(length - 200, np.float32) for key in ("advantages", "rollout_logprobs")}
            tokens = np.concatenate([prompt[number // 16], generator.integers(0, 150_000, length - 200)])
            samples.append(TrainSample(tokens, np.ones(length - 200, np.float32), columns))
        options = {
            "num_dp": 64,
            "align": 1,
            "max_tokens": LONGEST,
            "loss_mean": LossMean.token,
            "share_below": float(shares),
        }
        [batch], taken = timed(lambda: pack(samples, attention=attends, **options))  # noqa: B023
        micros = [micro for of_rank in batch.micro_batches for micro in of_rank]
        written = [each for micro in micros for each in vars(micro).values() if isinstance(each, np.ndarray)]
        written += [each for micro in micros for each in micro.columns.values()]
        _, copied = timed(lambda: [each.copy() for each in written])  # noqa: B023
        what, size = "shared" if shares else "apart", sum(each.nbytes for each in written) / 1e6
        yield f"| {name} | {sum(lengths):,} | {what} | {size:,.0f} | {taken:.0f} | {copied:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", type=float, default=24576, help="tokens at which attention is half of the work")
    parser.add_argument("--only", choices=TABLES, help="one of the tables")
    args = parser.parse_args()
    attends = (Attention(2 / args.attention),)
    tables = {
        "sequences": lambda: sequences(attends),
        "families": families,
        "prompts": lambda: prompts(attends),
        "turns": lambda: turns(attends),
        "arrays": lambda: arrays(attends),
    }
    print(f"{conditions()}, attention {args.attention:g}")
    for name, lines in tables.items():
        if args.only in (None, name):
            print()
            for line in lines():
                print(line, flush=True)


if __name__ == "__main__":
    main()
