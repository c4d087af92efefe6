"""The model on its held-out prompts, by the engines and the reward that training uses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slime.config.schema import EvalConfig, RewardConfig
from slime.data.tokenize import Tokenizer
from slime.rollout.generate import Engine, Generator
from slime.rollout.pipeline import FailureBudget, Pipeline, Scorer
from slime.rollout.spread import front
from slime.rollout.stats import group_stats, pass_at_k
from slime.types import Group, Prompt, Sample


@dataclass(frozen=True)
class Evaluation:
    """What the model answered on the held-out set.

    Attributes:
        groups: one a prompt, in the order they finished.
        stats: metrics `eval/...`, and wall time under `seconds/eval`.
    """

    groups: tuple[Group, ...]
    stats: dict[str, float]


async def evaluate(
    cfg: EvalConfig,
    reward: RewardConfig,
    seed: int,
    version: int,
    *,
    prompts: Sequence[Prompt],
    tokenizer: Tokenizer,
    scorer: Scorer,
    engines: Sequence[Engine],
    max_in_flight: int,
    patience_s: float,
    progress: Callable[[int, int], None] = lambda finished, total: None,
) -> Evaluation:
    """Every held-out prompt, generated and scored.

    Args:
        cfg: samples a prompt, and their sampling.
        reward: name and `max_failed_share` of the reward.
        seed: of the run; the same request always has the same seed, so that evaluations differ by the weights alone.
        version: the weight version that every engine holds.
        prompts: the held-out set.
        tokenizer: turns responses into text.
        scorer: the reward.
        engines: every engine; the requests are spread over them.
        max_in_flight: requests at the engines at once.
        patience_s: how long an engine may go without generating a token before it counts as hung.
        progress: told (prompts finished, prompts) after each.

    Raises:
        SlimeError: an engine failed or is stale, or too many rewards failed.
    """
    await _separate(engines)
    generator = Generator(front(engines), cfg.sampling, tokenizer, seed)
    failures = FailureBudget(reward, len(prompts) * cfg.samples_per_prompt)
    pipeline = Pipeline(generator, engines, scorer, failures, max_in_flight, version, patience_s)
    for prompt in prompts:
        pipeline.submit(Group(prompt, [Sample(prompt, index) for index in range(cfg.samples_per_prompt)]))
    groups: list[Group] = []
    try:
        while pipeline.active:
            groups.append(await pipeline.next_finished())
            progress(len(groups), len(prompts))
    finally:
        await pipeline.cancel()
    await _separate(engines)
    stats = group_stats(groups) | failures.stats() | pass_at_k(groups)
    return Evaluation(tuple(groups), _metrics(stats, pipeline))


async def _separate(engines: Sequence[Engine]) -> None:
    """Let no request of a rollout share a batch with one of an evaluation: a request with a seed draws other tokens
    beside a greedy one, because SGLang then sorts the vocabulary for the whole batch before it draws.

    What a batch had is also in what it becomes when requests join it, until it was empty once, and one whose last
    request has been answered is not empty yet. An engine that has flushed its cache is.
    """
    await asyncio.gather(*(engine.flush_cache() for engine in engines))


def _metrics(stats: dict[str, float], pipeline: Pipeline) -> dict[str, float]:
    own = {name.replace("rollout/", "eval/", 1): value for name, value in stats.items()}
    return own | {"eval/num_tokens": float(pipeline.num_tokens), "seconds/eval": sum(pipeline.seconds.values())}
