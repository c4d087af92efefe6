"""Verdicts a second: of good rewards, and where some samples misbehave in every way that tests/reward knows.

    python benchmarks/rewards.py                          # good ones
    python benchmarks/rewards.py --misdeeds               # 400 samples each, 1 % and 10 % of them bad; minutes
    python benchmarks/rewards.py --misdeeds --only fork   # those whose name has "fork" in it

A misdeed may cost its own sample the value, and time. It must cost no other sample anything: such verdicts are
counted, and so are processes that live when the service has closed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil
from machine import conditions

from slime import plugins
from slime.config.schema import RewardConfig
from slime.reward.service import RewardService
from slime.segments import Segment
from slime.types import Prompt, Sample, Verdict

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.reward import misbehaving
from tests.reward.misdeeds import MISDEEDS, Misdeed

NUM_SAMPLES, SHARES = 400, (0.01, 0.1)


async def judged(service: RewardService, samples: Sequence[Sample]) -> list[Verdict]:
    return list(await asyncio.gather(*(service.score(sample) for sample in samples)))


def full(sample: Sample, num_tokens: int) -> Sample:
    """`sample` with as many tokens, log-probs and mask entries."""
    tokens, logprobs, loss_mask = list(range(num_tokens)), [-0.123456] * num_tokens, [1] * num_tokens
    sample.segments = [Segment(sample.prompt.tokens, tokens, logprobs, loss_mask)]
    return sample


def good_cases() -> dict[str, tuple[RewardConfig, list[Sample]]]:
    trivial, math = RewardConfig(name="misbehaving", num_workers=2), RewardConfig(name="math", num_workers=2)
    prose = (
        "We see that x is 12 and then y, so (x + y)^2 grows; consider \\frac{a}{b} again.\n" * 125
    )  # 10,000 characters
    prompt = Prompt("0/0", (), tuple(range(100)), "5")
    return {
        f"returns a number, {num_tokens:,} tokens": (
            trivial,
            [full(misbehaving.sample("value", float(i)), num_tokens) for i in range(1000)],
        )
        for num_tokens in (100, 8000)
    } | {
        f"`math`, 10,000 characters, {name}": (math, [Sample(prompt, 0, response=prose + end) for _ in range(1000)])
        for name, end in (("answer in a box", "So \\boxed{5}."), ("none but a number", "So it is 5."))
    }


def good(repeat: int) -> None:
    print("| reward | verdicts/s: best | median | of this process, CPU s a 1,000 |\n|---|---|---|---|")
    for name, (cfg, samples) in good_cases().items():
        with RewardService(cfg) as service:
            asyncio.run(judged(service, samples[:100]))
            rates, cpu = [], time.process_time()
            for _ in range(repeat):
                began = time.perf_counter()
                asyncio.run(judged(service, samples))
                rates.append(len(samples) / (time.perf_counter() - began))
            cpu = (time.process_time() - cpu) / repeat / len(samples) * 1000
        print(f"| {name} | {max(rates):,.0f} | {sorted(rates)[repeat // 2]:,.0f} | {cpu:.2f} |", flush=True)


def bad(misdeed: Misdeed, share: float, folder: Path) -> tuple[float, Counter[str], int, set[int]]:
    """Verdicts a second; those of the bad samples by kind; good samples robbed of theirs; processes left."""
    samples = [misbehaving.sample("value", float(i)) for i in range(NUM_SAMPLES)]
    guilty = random.Random(0).sample(range(NUM_SAMPLES), int(share * NUM_SAMPLES))
    for index in guilty:
        samples[index] = misbehaving.sample(misdeed.behaviour, misdeed.label)
    before = set(psutil.pids())
    cfg = RewardConfig(name="misbehaving", num_workers=2, timeout_s=1.0, memory_mb=512)
    with RewardService(cfg, folder / "reward.log") as service:
        began = time.perf_counter()
        verdicts = asyncio.run(judged(service, samples))
        seconds = time.perf_counter() - began
    kinds = Counter(str(verdicts[index].kind) for index in guilty)
    right = [Verdict.of(float(i), length=3.0) for i in range(NUM_SAMPLES)]
    robbed = sum(verdicts[i] != right[i] for i in range(NUM_SAMPLES) if i not in set(guilty))
    return NUM_SAMPLES / seconds, kinds, robbed, {pid for pid in set(psutil.pids()) - before if _is_ours(pid)}


def _is_ours(pid: int) -> bool:
    """Whether it is, or was forked from, a worker: they have this program's import path on their command line."""
    try:
        return sys.path[0] in " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return False


def misdeeds(only: str, folder: Path) -> None:
    rates = [f"verdicts/s with {share:.0%} bad" for share in SHARES]
    print(
        "|", " | ".join(["does", *rates, "verdicts of the bad", "good ones robbed", "processes left", "log, MiB"]), "|"
    )
    print("|---|---|---|---|---|---|---|")
    for name, misdeed in MISDEEDS.items():
        if only not in name:
            continue
        runs = [bad(misdeed, share, folder) for share in SHARES]
        kinds = sum((kinds for _, kinds, _, _ in runs), Counter[str]())
        log = folder / "reward.log"
        cells = [
            name,
            *(f"{rate:,.0f}" for rate, *_ in runs),
            ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
            f"{sum(robbed for _, _, robbed, _ in runs)}",
            f"{sum(len(left) for *_, left in runs)}",
            f"{log.stat().st_size / 2**20:.1f}",
        ]
        log.unlink()
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--misdeeds", action="store_true", help="measure misbehaving samples instead of good ones")
    parser.add_argument("--only", default="", help="misdeeds with this in their name")
    parser.add_argument("--repeat", type=int, default=15, help="rounds of 1,000 good samples")
    options = parser.parse_args()
    print(conditions(), f"load average {os.getloadavg()[0]:.1f}\n", sep=", ")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # where a pickle that the service loaded would leave its mark
        site, log = Path(folder, "site"), Path(folder, "log")
        site.mkdir()
        log.mkdir()
        misbehaving.install(site)
        sys.path.insert(0, str(site))
        plugins.load.cache_clear()
        misdeeds(options.only, log) if options.misdeeds else good(options.repeat)
        assert {path.name for path in Path(folder).iterdir()} == {"site", "log"}, "a pickle was loaded"


if __name__ == "__main__":
    main()
