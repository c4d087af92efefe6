"""The model on its held-out prompts, by the engines and the reward that training uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slime.data.prompts import HeldOut
from slime.sampling.loop import Progress
from slime.sampling.sampler import Sampler
from slime.sampling.stats import group_stats, pass_at_k
from slime.types import Group, Sample

SECONDS = "seconds/eval"


async def evaluate(
    sampler: Sampler, sets: Sequence[HeldOut], version: int, progress: Progress = lambda finished, total: None
) -> tuple[list[Group], dict[str, float]]:
    """Every held-out prompt, generated and scored, one set after another. The same request always has the same seed, so
    that evaluations differ by the weights alone.

    Args:
        sampler: the run's; without a gate, no rollout is in progress.
        version: the weight version that every engine holds.
        progress: told (prompts finished, prompts) after each.

    Returns:
        The groups, one a prompt, in the order they finished. Metrics `eval/...`, those of a named set
        `eval/<name>/...`, and wall time under `seconds/eval`.

    Raises:
        SlimeError: an engine failed or is stale, or too many rewards failed.
    """
    groups: list[Group] = []
    stats, total = {SECONDS: 0.0}, sum(len(each.prompts) for each in sets)
    for each in sets:
        # Let no request of a rollout share a batch with one of an evaluation: a request with a seed draws other tokens
        # beside a greedy one, because SGLang then sorts the vocabulary for the whole batch before it draws. What a
        # batch had is also in what it becomes when requests join it, until it was empty once, and one whose last
        # request has been answered is not empty yet. An engine that has flushed its cache is. Behind a gate requests
        # for steps to come are inside, and no run repeats bit for bit.
        if sampler.gate is None:
            await sampler.engines.flush_cache()
        num_before, samples = len(groups), range(each.cfg.samples_per_prompt)
        pipeline = sampler.begin(each.cfg.sampling, version, len(each.prompts) * len(samples), is_evaluation=True)
        for prompt in each.prompts:
            pipeline.submit(Group(prompt, [Sample(prompt, index) for index in samples]))
        try:
            while pipeline.active:
                groups.append(await pipeline.next_finished())
                progress(len(groups), total)
        finally:
            await pipeline.cancel()
        if sampler.gate is None:
            await sampler.engines.flush_cache()
        own = groups[num_before:]
        found = group_stats(own) | pipeline.failures.stats() | pass_at_k(own, each.cfg.pass_threshold)
        stats |= of_evaluation(found | {"rollout/num_tokens": float(pipeline.attempts.num_tokens)}, each.name)
        stats[SECONDS] += sum(pipeline.seconds.values())
    return groups, stats


def of_evaluation(stats: Mapping[str, float], name: str = "") -> dict[str, float]:
    """Metrics of rollouts, under the names that they have in an evaluation of the set `name`."""
    prefix = f"eval/{name}/" if name else "eval/"
    return {key.replace("rollout/", prefix, 1): value for key, value in stats.items()}
