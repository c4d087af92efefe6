"""How evenly sequences are packed: micro-batches against the fewest possible, and work against its mean over ranks.

    python benchmarks/packing.py                       # attention as much work as the rest at 24,576 tokens
    python benchmarks/packing.py --attention 53581     # GLM-4-9B: slime.plan.flops.attention_length

`bound` is the fewest micro-batches that could hold the tokens, a multiple of the ranks. `work` is that of the busiest
rank over the mean; `waiting` the same where ranks wait for the slowest of them at every micro-batch, as those do that
share experts or are stages of pipelines. Work is n + n^2 / attention tokens for a sequence of n.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable, Sequence

import numpy as np
from machine import conditions

from slime.train.bins import Shape, Unit, share_out
from slime.types import TrainSample

LONGEST, SEED = 32768, 7
SIZES = ((2048, 32768, 1), (2048, 32768, 8), (2048, 32768, 64), (8192, 32768, 64), (8192, 65536, 64))
COLUMNS = " micro-batches | bound | work | waiting | ms |\n" + 7 * "|---" + "|"
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


def packed(samples: Sequence[TrainSample], shape: Shape) -> tuple[list[list[list[Unit]]], float]:
    """The units of every rank's micro-batches, and milliseconds of processor time."""
    start = time.process_time()
    by_rank = share_out(samples, range(len(samples)), shape)
    return by_rank, 1000 * (time.process_time() - start)


def row(samples: Sequence[TrainSample], shape: Shape) -> str:
    by_rank, milliseconds = packed(samples, shape)
    count = sum(map(len, by_rank))
    rows = sum(shape.num_rows(samples, unit) for of_rank in by_rank for units in of_rank for unit in units)
    bound = math.ceil(rows / shape.max_tokens / shape.num_dp) * shape.num_dp
    work = np.asarray([[sum(shape.work(samples, unit) for unit in units) for units in of] for of in by_rank])
    busiest, waiting = work.sum(1).max() / work.sum(1).mean(), work.max(0).sum() / work.sum(1).mean()
    return f"{count:,} | {bound:,} | {busiest:.3f} | {waiting:.3f} | {milliseconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", type=float, default=24576, help="tokens at which attention is half of the work")
    attention = parser.parse_args().attention
    print(f"{conditions()}, attention {attention:g}\n")
    print(f"| lengths | sequences, cap, ranks |{COLUMNS}")
    for name, draw in LENGTHS.items():
        for count, cap, num_dp in SIZES:
            lengths = np.clip(draw(np.random.default_rng(SEED), count), 220, LONGEST).astype(int).tolist()
            shape = Shape(num_dp, 1, 1, cap, False, attention)
            print(
                f"| {name} | {count:,}, {cap:,}, {num_dp} | {row(samples_of(lengths, [0] * count), shape)}", flush=True
            )
    print(f"\n| groups of 16, prompt 200 | prompts |{COLUMNS}")
    lengths = np.clip(LENGTHS["lognormal"](np.random.default_rng(SEED), 8192), 220, LONGEST).astype(int).tolist()
    samples = samples_of(lengths, [number // 16 for number in range(8192)])
    for num_dp in (1, 8, 64):
        for shares in (False, True):
            what = "shared" if shares else "apart"
            print(f"| 8,192, 32,768, {num_dp} | {what} | {row(samples, Shape(num_dp, 1, 1, 32768, shares, attention))}")


if __name__ == "__main__":
    main()
