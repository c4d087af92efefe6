"""What faults of programs cost all others: attempts a second without faults, and with 1 % each of five kinds.

    python benchmarks/program_faults.py                          # 1,000 attempts of two turns, 16 workers
    python benchmarks/program_faults.py --prompts 50 --latency 0.2

The five: raising, hanging, ending its process, flooding the memory, forking without end. Programs run in the worker
processes of a run, and each turn takes `--latency` seconds of the engine, which is a part of this program. It ends with
1 if a group is lost, if a fault has a reward, or if an attempt without a fault has not its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
FAULTS = ("raises", "hangs", "vanishes", "floods", "forks")
SAMPLES = 4
EVERY = 5
"""One attempt of every fifth prompt, of four attempts each: 5 % of all."""


def sampler(folder: Path, program: Any, args: argparse.Namespace) -> tuple[Any, Any]:
    """A sampler of conversations with an engine that takes its time, and the prompts' tokens."""
    from plugins.agents.tests.conversations.formats import FORMATS, tokenizer_of
    from plugins.agents.tests.conversations.talks import RandomModel
    from slime.config.schema import DataConfig, ProgramConfig, RewardConfig, RolloutConfig, SamplingConfig
    from slime.engine_client.engine_set import EngineSet
    from slime.sampling.sampler import Sampler
    from slime_agents.conversations.conversation import Conversations
    from tests.engine_client.scripted_engine import Scorer
    from tests.sampling.test_program_faults import MESSAGES

    class Slow(RandomModel):
        async def generate(self, input_ids: Any, sampling: Any, /) -> Any:
            await asyncio.sleep(args.latency)
            return await super().generate(input_ids, sampling)

        async def load(self) -> tuple[int, int]:
            return 1, time.monotonic_ns()

    form = FORMATS["qwen3"]
    tokenizer = tokenizer_of(form, str(folder))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    chat = Conversations(tokenizer, DataConfig(path=""), 500)
    own, sampling = ProgramConfig(timeout_s=args.timeout_s), SamplingConfig(max_response_tokens=400)
    cfg = RolloutConfig(program=own, sampling=sampling, max_requests_per_engine=args.workers)
    engines, reward = EngineSet([Slow(form, tokenizer, random.Random(1))]), RewardConfig("-", max_failed_share=0.1)
    return Sampler(cfg, reward, 5, engines, tokenizer, program, Scorer(), chat), chat.first(MESSAGES, ())


async def make(folder: Path, program: Any, args: argparse.Namespace, numbers: range) -> tuple[list[Any], float]:
    """All samples of these prompts, and the seconds that they took."""
    from slime.config.schema import SamplingConfig
    from slime.types import Group, Prompt, Sample
    from tests.sampling.test_program_faults import MESSAGES

    made, tokens = sampler(folder, program, args)
    pipeline = made.begin(SamplingConfig(max_response_tokens=400), 1, len(numbers) * SAMPLES)
    began = time.perf_counter()
    for number in numbers:
        prompt = Prompt(f"0/{number}", MESSAGES, tuple(tokens))
        pipeline.submit(Group(prompt, [Sample(prompt, index) for index in range(SAMPLES)]))
    samples: list[Any] = []
    while pipeline.active:
        samples += (await pipeline.next_finished()).samples
    seconds = time.perf_counter() - began
    await pipeline.cancel()
    return samples, seconds


def wrong(samples: list[Any], faults: dict[str, str], prompts: int) -> list[str]:
    """What is not as it must be, a line each."""
    from slime.types import Status

    found = [] if len(samples) == prompts * SAMPLES else [f"{len(samples)} of {prompts * SAMPLES} attempts ended"]
    for sample in samples:
        number = sample.prompt.id.partition("/")[2]
        is_faulty = number in faults and sample.index == 1
        if is_faulty != (sample.status is Status.FAILED):
            found.append(f"attempt {sample.index} of prompt {number} is {sample.status}: {sample.verdict}")
        elif not is_faulty and sample.reward != sample.index % 2:
            found.append(f"attempt {sample.index} of prompt {number} has the reward {sample.reward}")
    return found


def measure(folder: Path, faults: dict[str, str], args: argparse.Namespace) -> tuple[float, list[str]]:
    """Attempts a second, and what is wrong."""
    from slime.config.schema import ProgramConfig
    from slime.sampling.programs import opened

    options = {"faults": faults, "folder": str(folder)}
    cfg = ProgramConfig("faulty", options, num_workers=args.workers, memory_mb=256, timeout_s=args.timeout_s)
    with opened(cfg, folder / "program.log") as program:
        asyncio.run(make(folder, program, args, range(args.prompts, args.prompts + args.workers)))  # workers start
        samples, seconds = asyncio.run(make(folder, program, args, range(args.prompts)))
    return len(samples) / seconds, wrong(samples, faults, args.prompts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=250, help=f"of {SAMPLES} attempts each")
    parser.add_argument("--workers", type=int, default=16)
    parser.add_argument("--latency", type=float, default=2.0, help="seconds of a turn")
    parser.add_argument("--timeout-s", type=float, default=10.0, help="seconds until a program hangs")
    args = parser.parse_args()
    from tests.sampling import faulty

    faults = {str(number): FAULTS[number // EVERY % len(FAULTS)] for number in range(0, args.prompts, EVERY)}
    with tempfile.TemporaryDirectory() as name:
        site = Path(name, "site")
        site.mkdir()
        faulty.install(site)
        sys.path.insert(0, str(site))
        without, problems = measure(Path(name), {}, args)
        print(f"{'attempts a second, without faults':<46}{without:>8.2f}", flush=True)
        with_faults, more = measure(Path(name), faults, args)
    print(f"{f'with {len(faults)} faults of {args.prompts * SAMPLES} attempts':<46}{with_faults:>8.2f}")
    print(f"{'lost':<46}{100 * (1 - with_faults / without):>8.1f} %")
    for problem in [*problems, *more]:
        print(problem)
    sys.exit(bool(problems or more))


if __name__ == "__main__":
    main()
