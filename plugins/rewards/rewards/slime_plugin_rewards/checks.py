"""What is wrong with the options of this plugin's rewards, told before a run starts and without running their code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError, did_you_mean
from slime_plugin_rewards import function, route
from slime_plugin_rewards.judge import unclear

if TYPE_CHECKING:
    from slime.config.schema import EngineGroupConfig, SlimeConfig


def problems(name: str, options: Mapping[str, Any], where: str = "reward") -> Sequence[str]:
    """A sentence for each thing that is wrong.

    Args:
        name: of the reward.
        options: of its factory.
        where: the key whose reward it is.
    """
    try:
        if name == "function" and isinstance(options.get("path"), str):
            function.examine(options["path"], options.get("arguments") or {}, options.get("sha256"))
        if name == "route":
            found: list[str] = []
            for value, chosen in route.choices(options).items():
                found += problems(chosen.name, chosen.options, f"{where}.options.rewards.{value}")
            return found
    except SlimeError as error:
        return [f"{error.where or where}: {error.what} ({error.todo.rstrip('.')})"]
    return []


def judge_problems(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Of every `judge` of a run that samples, its prompt sets' too: whom it asks is not clear, or not in the run."""
    from slime.sampling.by_set import own_of_sets
    from slime.topology.engines import generates

    if not generates(cfg):
        return
    chosen = [(cfg.reward.name, cfg.reward.options, "reward.options")]
    for of, (name, options) in own_of_sets("reward", cfg.data, cfg.eval).items():
        home = f"eval.sets.{of.removeprefix('eval/')}" if of.startswith("eval/") else f"data.sets.{of}"
        chosen.append((name, options, f"{home}.reward_options"))
    for each in chosen:
        for own, where in _judges(*each):
            group = own.get("engines")
            if fault := unclear(own.get("url"), group, own.get("key_variable"), where):
                yield fault
            elif group:
                yield from _no_judge(str(group), cfg.rollout.engines, f"{where}.engines")


def _judges(name: str, options: Mapping[str, Any], where: str) -> Iterator[tuple[Mapping[str, Any], str]]:
    """The options of a judge, and of those that a route leads to, with their keys."""
    if name == "judge":
        yield options, where
    if name == "route":
        with suppress(SlimeError):  # `problems` finds it again
            for value, chosen in route.choices(options).items():
                home = f"rewards.{value}.options" if value else "default"
                yield from _judges(chosen.name, chosen.options, f"{where}.{home}")


def _no_judge(group: str, engines: Mapping[str, EngineGroupConfig], where: str) -> Iterator[SlimeError]:
    frozen = [name for name, each in engines.items() if each.model is not None]
    if group in frozen:
        return
    start = f"Set rollout.engines.{group}.model=<HF folder>."
    if group in engines:
        what = f"engine group '{group}' has the trained model, which is no judge of itself"
        yield SlimeError(what, where=where, todo=start)
    else:
        todo = did_you_mean(group, frozen, f"{where}=") if frozen else start
        yield SlimeError(f"no engine group '{group}' has a model of its own", where=where, todo=todo)
