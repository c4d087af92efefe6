"""Checks of this plugin's rewards before a run: their options, and the engine groups that they ask."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime import plugins
from slime.compose.options import check_options, defaults_of, own_problems
from slime.errors import SlimeError, did_you_mean
from slime_rewards.general import route, weighted
from slime_rewards.general.judge import unclear
from slime_rewards.general.reward_model import fault_of

if TYPE_CHECKING:
    from slime.config.schema import DataConfig, EngineGroupConfig, EvalConfig, RewardConfig

JUDGE, REWARD_MODEL = "judge", "reward-model"


def problems(name: str, options: Mapping[str, Any], home: str = "reward.options") -> Iterator[SlimeError]:
    """Faults of the rewards that a reward is made of, found without running their code; `home` is the key of its
    options."""
    try:
        inside = [*_inside(name, options, home)]
    except SlimeError as error:
        yield error if error.where else error.under(home.removesuffix(".options"))
        return
    installed = plugins.load()
    for chosen, own, where in inside:
        schema = installed.schemas.get(f"reward/{chosen}")
        given = {**defaults_of(schema), **own}
        faults = list(check_options(installed.rewards.get(chosen), given, schema, where))
        yield from faults or own_problems(schema, given, where)
        yield from problems(chosen, own, where)


def _inside(name: str, options: Mapping[str, Any], home: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """The rewards that one is made of: names, options and their keys.

    Raises:
        SlimeError: one is written in another way, or is not installed.
    """
    if name == "route":
        for value, chosen in route.choices(options).items():
            yield chosen.name, chosen.options, f"{home}.rewards.{value}.options" if value else f"{home}.default"
    if name == "sum":
        for label, part in weighted.parts_of(options).items():
            within = "" if part.choice.name == "function" else ".options"
            yield part.choice.name, part.choice.options, f"{weighted.KEY}.{label}{within}"


def engine_problems(
    reward: RewardConfig, data: DataConfig, evaluation: EvalConfig, engines: Mapping[str, EngineGroupConfig]
) -> Iterator[SlimeError]:
    """Rewards of a run that samples, its prompt sets' too, that ask nobody, a group that is not in the run, or one with
    another kind of model."""
    from slime.sampling.sampler import own_of_sets

    chosen = [(reward.name, reward.options, "reward.options")]
    for of, (name, options) in own_of_sets("reward", data, evaluation).items():
        home = f"eval.sets.{of.removeprefix('eval/')}" if of.startswith("eval/") else f"data.sets.{of}"
        chosen.append((name, options, f"{home}.reward_options"))
    for each in chosen:
        for name, own, where in _asking(*each):
            group = own.get("engines")
            if name == JUDGE:
                fault = unclear(own.get("url"), group, own.get("key_variable"), where)
            else:
                fault = fault_of(own.get("scored_at"), own.get("std"), where)
            if fault:
                yield fault
            elif group:
                yield from _unfit(name, str(group), engines, f"{where}.engines")


def _asking(name: str, options: Mapping[str, Any], where: str) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    """The rewards that ask engines, also those that another is made of: names, options and their keys."""
    if name in (JUDGE, REWARD_MODEL):
        yield name, options, where
    with suppress(SlimeError):  # `problems` finds it again
        for each in _inside(name, options, where):
            yield from _asking(*each)


def _unfit(reward: str, group: str, engines: Mapping[str, EngineGroupConfig], where: str) -> Iterator[SlimeError]:
    frozen = {name: each.model for name, each in engines.items() if each.model is not None}
    start = f"Set rollout.engines.{group}.model=<HF folder>."
    if group in frozen:
        yield from _other_kind(reward, frozen[group], f"rollout.engines.{group}.model")
    elif group in engines:
        what = f"engine group '{group}' has the trained model, which is no judge of itself"
        yield SlimeError(what, where=where, todo=start)
    else:
        todo = did_you_mean(group, frozen, f"{where}=") if frozen else start
        yield SlimeError(f"no engine group '{group}' has a model of its own", where=where, todo=todo)


def _other_kind(reward: str, model: str, where: str) -> Iterator[SlimeError]:
    """The reason why its model cannot answer; one that cannot be read is found by others."""
    from slime.config.hf import read_hf_config, scores
    from slime.config.paths import resolve

    try:
        hf, folder = read_hf_config(model), resolve(model)
    except SlimeError:
        return
    named = " ".join(hf.get("architectures") or ["a model without architectures"])
    if reward == JUDGE and scores(hf):
        yield SlimeError(f"{named} scores and writes no words", where=where, todo="Set reward=reward-model.")
    elif reward == REWARD_MODEL and not scores(hf):
        todo = "Name the folder of a model for sequence classification, or set reward=judge."
        yield SlimeError(f"{named} writes words and is no reward model", where=where, todo=todo)
    elif reward == REWARD_MODEL and not _has_template(folder):
        todo = "Put the template that it was trained with into the folder, as chat_template.jinja."
        yield SlimeError("the reward model has no chat template", where=where, todo=todo)


def _has_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in ("chat_template.jinja", "chat_template.json", "chat_templates")):
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text()).get("chat_template"))
    except (OSError, ValueError):
        return False
