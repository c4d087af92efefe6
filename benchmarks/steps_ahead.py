"""How far ahead groups begin, and what it costs, on a virtual clock: `rollout.max_staleness` as a bound and as a lag.

    python benchmarks/steps_ahead.py                # a bound of 3
    python benchmarks/steps_ahead.py --bound 2 --steps 300
    python benchmarks/steps_ahead.py +model=glm4-tiny +cluster=local rollout.max_staleness=3 train.epochs_per_rollout=8

The loop, the gate and the pipeline are those of a run; scripted are the engine, which decodes a token a second for each
request, and the trainers, which take their seconds. `lag` begins the bound's number of steps ahead always; `bound` as
many as `slime_filters.ahead.steps_ahead` says. `engine`: how many requests it runs at once, `one step` or `all`. A step
has 16 responses of 100 tokens in the mean. `trainers`: their seconds in the mean, over those a step of the engine, with
trainers that take none, at this lag: 0.5 has slow engines, 2 and 4 slow trainers. Lognormal numbers have the standard
deviation of their logarithm beside them; both columns draw the same ones. `staleness` is of a step's groups (oldest
token), `tokens' lag` of its tokens, both in versions and in the mean over all steps; idle shares too.

With the words of a run two whole runs are made of them, one after the other, in folders of their own under `--folder`.
Seconds are the median, the rest means over all steps.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import math
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from machine import conditions

sys.path.insert(0, str(Path(__file__).parents[1]))
from slime import __main__ as command
from slime.builtins import KeepAll, Single
from slime.config.choices import Publish
from slime.config.schema import RewardConfig, RolloutConfig, SamplingConfig
from slime.engine_client.engine_set import EngineSet
from slime.observe.metrics import read_rows
from slime.sampling.buffer import Begun, FifoBuffer
from slime.sampling.sampler import Sampler
from slime_filters.ahead.gate import EngineGate
from slime_filters.ahead.rollout import GroupsAhead
from slime_filters.ahead.steps_ahead import StepsAhead
from tests.engine_client.scripted_engine import Letters, Scorer
from tests.engine_client.virtual_clock import VirtualEngine, run
from tests.sampling.scripted_rollout import Prompts

PROMPTS, SAMPLES, TOKENS, LONGEST = 8, 2, 100, 1000
AT_ONCE = {"one step": PROMPTS * SAMPLES, "all": 10_000}
SPREADS = {"constant": 0.0, "lognormal 0.5": 0.5, "lognormal 1": 1.0}
TRAINERS = {"constant": 0.0, "lognormal 0.4": 0.4}
RATIOS = (0.5, 1.0, 2.0, 4.0)
COLUMNS = ("engine", "lengths", "trainers' seconds", "trainers", "s a step: lag", "bound", "more")
COLUMNS += ("staleness: lag", "bound", "tokens' lag: lag", "bound", "engines idle: bound", "trainers idle: bound")
OF_RUNS = ("rollout/staleness_mean", "rollout/weight_lag_mean", "engines/idle_share", "trainers/idle_share")
Rule = Callable[[int], StepsAhead]


class Lag(StepsAhead):
    """Always as many steps ahead as are allowed."""

    @property
    def number(self) -> int:
        return self.most


class Measured(NamedTuple):
    """Of a run: seconds a step, and means over its steps."""

    step_s: float
    staleness: float
    tokens_lag: float
    engines_idle: float
    trainers_idle: float


def drawn(mean: float, spread: float, key: str) -> float:
    """A number by its key, lognormal with that mean; `spread` is the standard deviation of its logarithm."""
    return mean * math.exp(random.Random(key).gauss(-(spread**2) / 2, spread)) if spread else mean


def simulate(
    rule: Rule, bound: int, at_once: int, spread: float, train_s: Callable[[int], float], steps: int
) -> Measured:
    """A whole run; `train_s` by step."""
    cfg = RolloutConfig(
        prompts_per_step=PROMPTS,
        samples_per_prompt=SAMPLES,
        max_requests_per_engine=at_once,
        max_staleness=bound,
        publish=Publish.abort,
        sampling=SamplingConfig(max_response_tokens=LONGEST),
    )

    def length(prompt_token: int, seed: int) -> int:
        return min(LONGEST, max(1, round(drawn(TOKENS, spread, str(seed)))))

    async def main() -> Measured:
        engine, now = VirtualEngine(length), asyncio.get_running_loop().time
        engines = EngineSet([engine])
        gate = EngineGate(engines, cfg.publish, 600.0)
        reward = RewardConfig(name="scripted")
        sampler = Sampler(cfg, reward, 5, engines, Letters(), Single(), Scorer(), None, gate)
        sources = {"prompts": Prompts(), "buffer": FifoBuffer(), "sample_filter": KeepAll(), "begun": Begun()}
        rollout = GroupsAhead(cfg, sampler, num_steps=steps, **sources)
        rollout._steps_ahead = rule(bound)
        collected = []
        for version in range(steps):
            engine.version = version
            await gate.open(version)
            rollout.go_on(version)
            collected.append((await rollout.collect(version)).stats)
            await asyncio.sleep(train_s(version))
            await gate.close()
        await gate.open(steps - 1)
        await rollout.close()

        def mean(name: str) -> float:
            return statistics.fmean(stats[name] for stats in collected)

        step_s = now() / steps
        waited = mean("seconds/generate") / step_s
        return Measured(
            step_s, mean("rollout/staleness_mean"), mean("rollout/weight_lag_mean"), engines.idle_share(), waited
        )

    found: Measured = run(main())
    return found


def whole_runs(words: list[str], folder: Path) -> None:
    """Both of them, as lines of a table."""
    print("| run | steps | s a step | staleness | tokens' lag | engines idle | trainers idle | held-out reward |")
    print("|---" * 8 + "|", flush=True)
    for rule in ("lag", "bound"):
        own = [f"run.dir={folder.absolute()}", f"run.name={rule}", "run.progress=false"]
        subprocess.run([sys.executable, __file__, "--run", rule, *words, *own], check=True, stdout=subprocess.DEVNULL)
        rows = list(read_rows(folder / rule / "metrics.jsonl"))
        steps = [row for row in rows if row["stage"] == "rl" and "train/loss" in row]
        cells = [rule, str(len(steps)), f"{statistics.median(row['seconds/step'] for row in steps):.2f}"]
        cells += [f"{statistics.fmean(row[name] for row in steps):.2f}" for name in OF_RUNS]
        scores = [row["eval/reward_mean"] for row in rows if "eval/reward_mean" in row]
        print(f"| {' | '.join([*cells, f'{scores[-1]:.3f}' if scores else ''])} |", flush=True)


def table(bound: int, steps: int) -> None:
    """Every engine, spread and ratio, as lines of a table."""
    print(f"| {' | '.join(COLUMNS)} |\n{'|---' * len(COLUMNS)}|", flush=True)
    for (engine, at_once), (lengths, spread) in itertools.product(AT_ONCE.items(), SPREADS.items()):
        unit_s = simulate(Lag, bound, at_once, spread, lambda step: 1e-3, steps).step_s
        for ratio, (seconds, of_trainers) in itertools.product(RATIOS, TRAINERS.items()):

            def train_s(step: int, mean: float = unit_s * ratio, spread: float = of_trainers) -> float:
                return drawn(mean, spread, f"trainers {step}")

            lag, own = (simulate(rule, bound, at_once, spread, train_s, steps) for rule in (Lag, StepsAhead))
            more = own.step_s / lag.step_s - 1
            cells = [engine, lengths, seconds, f"{ratio:g}", f"{lag.step_s:.1f}", f"{own.step_s:.1f}", f"{more:+.2%}"]
            cells += [f"{value:.2f}" for value in (lag.staleness, own.staleness, lag.tokens_lag, own.tokens_lag)]
            print(f"| {' | '.join([*cells, f'{own.engines_idle:.0%}', f'{own.trainers_idle:.0%}'])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--bound", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--folder", type=Path, default=Path("runs/steps-ahead"))
    parser.add_argument("--run", choices=["lag", "bound"], help=argparse.SUPPRESS)
    args = parser.parse_intermixed_args()
    if args.run:
        with mock.patch("slime_filters.ahead.rollout.StepsAhead", Lag if args.run == "lag" else StepsAhead):
            sys.exit(command.main(args.words))
    if args.words:
        print(f"{conditions()}\n")
        whole_runs(args.words, args.folder)
    else:
        print(f"{conditions()}; bound {args.bound}, {args.steps} steps\n")
        table(args.bound, args.steps)


if __name__ == "__main__":
    main()
