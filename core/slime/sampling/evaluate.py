"""The model on its held-out prompts, by the engines and the reward that training uses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from slime.config.schema import EvalConfig, EvalSetConfig
from slime.data.named import HeldOut
from slime.sampling.pipeline import Pipeline
from slime.sampling.sampler import Sampler
from slime.sampling.stats import group_stats, pass_at_k
from slime.types import Group, Prompt, Sample

SECONDS = "seconds/eval"


@dataclass(frozen=True)
class Evaluation:
    """What the model answered on the held-out set.

    Attributes:
        groups: one a prompt, in the order they finished.
        stats: metrics `eval/...`, and wall time under `seconds/eval`.
    """

    groups: tuple[Group, ...]
    stats: dict[str, float]


async def evaluate_sets(
    sampler: Sampler,
    sets: Sequence[HeldOut],
    version: int,
    progress: Callable[[int, int], None] = lambda finished, total: None,
) -> Evaluation:
    """`evaluate` of one set after another; the metrics of a named one are `eval/<name>/...`."""
    groups: list[Group] = []
    stats: dict[str, float] = {}
    total = sum(len(each.prompts) for each in sets)
    for each in sets:
        told = partial(_told, progress, len(groups), total)
        found = await evaluate(sampler, each.cfg, each.prompts, version, told)
        groups += found.groups
        seconds = stats.get(SECONDS, 0.0) + found.stats[SECONDS]
        prefix = f"eval/{each.name}/" if each.name else "eval/"
        stats |= {name.replace("eval/", prefix, 1): value for name, value in found.stats.items() if name != SECONDS}
        stats[SECONDS] = seconds
    return Evaluation(tuple(groups), stats)


def _told(progress: Callable[[int, int], None], before: int, total: int, finished: int, _: int) -> None:
    progress(before + finished, total)


async def evaluate(
    sampler: Sampler,
    cfg: EvalConfig | EvalSetConfig,
    prompts: Sequence[Prompt],
    version: int,
    progress: Callable[[int, int], None] = lambda finished, total: None,
) -> Evaluation:
    """Every held-out prompt, generated and scored. The same request always has the same seed, so that evaluations
    differ by the weights alone.

    Args:
        sampler: the run's; without a gate, no rollout is in progress.
        cfg: samples a prompt, and their sampling.
        prompts: the held-out set.
        version: the weight version that every engine holds.
        progress: told (prompts finished, prompts) after each.

    Raises:
        SlimeError: an engine failed or is stale, or too many rewards failed.
    """
    # Let no request of a rollout share a batch with one of an evaluation: a request with a seed draws other tokens
    # beside a greedy one, because SGLang then sorts the vocabulary for the whole batch before it draws. What a batch
    # had is also in what it becomes when requests join it, until it was empty once, and one whose last request has been
    # answered is not empty yet. An engine that has flushed its cache is. Behind a gate requests for steps to come are
    # inside, and no run repeats bit for bit.
    if sampler.gate is None:
        await sampler.engines.flush_cache()
    pipeline = sampler.begin(cfg.sampling, version, len(prompts) * cfg.samples_per_prompt, is_evaluation=True)
    for prompt in prompts:
        pipeline.submit(Group(prompt, [Sample(prompt, index) for index in range(cfg.samples_per_prompt)]))
    groups: list[Group] = []
    try:
        while pipeline.active:
            groups.append(await pipeline.next_finished())
            progress(len(groups), len(prompts))
    finally:
        await pipeline.cancel()
    if sampler.gate is None:
        await sampler.engines.flush_cache()
    stats = group_stats(groups) | pipeline.failures.stats() | pass_at_k(groups, cfg.pass_threshold)
    return Evaluation(tuple(groups), _metrics(stats, pipeline))


def of_evaluation(stats: Mapping[str, float]) -> dict[str, float]:
    """Metrics of rollouts, under the names that they have in an evaluation."""
    return {name.replace("rollout/", "eval/", 1): value for name, value in stats.items()}


def _metrics(stats: dict[str, float], pipeline: Pipeline) -> dict[str, float]:
    return of_evaluation(stats) | {
        "eval/num_tokens": float(pipeline.attempts.num_tokens),
        SECONDS: sum(pipeline.seconds.values()),
    }
