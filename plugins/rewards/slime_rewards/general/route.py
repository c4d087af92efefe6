"""Reward `route`: another reward for each value of a column, so that one run trains on several kinds of prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from guarded_workers.wire import FaultError
from slime.contracts import GroupReward, Reward
from slime.errors import SlimeError
from slime.reward.verdicts import checked
from slime.time_limit import FAILURES
from slime.types import Sample, Verdict

KEY = "reward.options.rewards"


@dataclass(frozen=True)
class Choice:
    name: str
    options: Mapping[str, Any]


@dataclass
class RouteReward:
    """The verdict of the reward that the row's column chooses. A row of another value is `invalid`, or `default`'s."""

    rewards: dict[str, Any]
    """Value of the column -> name of a reward, or `{name: ..., options: {...}}`."""
    column: str = "data_source"
    """Column that chooses; `a.b` is the field b of the column a."""
    default: str | None = None
    """Reward of rows whose value is not listed."""

    def __post_init__(self) -> None:
        from slime import plugins  # here, because importing a plugin is to be quick

        chosen = choices(vars(self))
        self._rewards = {
            value: plugins.load().rewards.create(each.name, **each.options) for value, each in chosen.items()
        }
        if any(isinstance(reward, GroupReward) for reward in self._rewards.values()):
            self.score_group = self._score_group  # only then is it one of them

    def score(self, sample: Sample) -> Verdict:
        reward = self._chosen(sample)
        assert not isinstance(reward, GroupReward), "then samples are judged together"
        return reward if isinstance(reward, Verdict) else reward.score(sample)

    def _score_group(self, samples: Sequence[Sample]) -> Sequence[Verdict]:
        reward = self._chosen(samples[0])
        return [reward] * len(samples) if isinstance(reward, Verdict) else judged(reward, samples)

    def _chosen(self, sample: Sample) -> Reward | Verdict:
        value: Any = sample.prompt.metadata
        for part in self.column.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        reward = self._rewards.get(str(value), self._rewards.get(""))
        if reward is None:
            known = ", ".join(sorted(self._rewards))
            return Verdict.invalid(
                f"row {sample.prompt.id}: no reward for {self.column}={value!r:.80}, only for {known}"
            )
        return reward


def judged(reward: Reward, samples: Sequence[Sample]) -> list[Verdict]:
    """Checked verdicts of one of several rewards; an exception costs this sample, or this group, alone."""
    if not isinstance(reward, GroupReward):
        return [_judged(partial(reward.score, sample)) for sample in samples]
    try:
        said: Any = reward.score_group(samples)
    except FAILURES as error:
        return [Verdict.error(_why(error))] * len(samples)
    if not isinstance(said, list | tuple) or len(said) != len(samples):
        what = f"score_group returned {said!r:.80}, not a list of {len(samples)} Verdicts"
        return [Verdict.error(what)] * len(samples)
    return [checked(each, "score_group") for each in said]


def _judged(score: Callable[[], Any]) -> Verdict:
    try:
        return checked(score(), "score")
    except FAILURES as error:
        return Verdict.error(_why(error))


def _why(error: BaseException) -> str:
    from guarded_workers.worker import describe  # here, because importing a plugin is to be quick

    return str(error) if isinstance(error, FaultError) else describe(error, 2)


def choices(options: Mapping[str, Any]) -> dict[str, Choice]:
    """Value of the column -> reward; "" is the default.

    Raises:
        SlimeError: one is not installed, or is written in another way.
    """
    from slime import plugins

    rewards = options.get("rewards")
    if not isinstance(rewards, Mapping) or not rewards:
        raise SlimeError("no rewards are given", where=KEY, todo=f"Set for instance {KEY}.gsm8k=math.")
    given = {str(value): chosen for value, chosen in rewards.items()}
    if options.get("default") is not None:
        given[""] = options["default"]
    found = {}
    for value, chosen in given.items():
        where = f"{KEY}.{value}" if value else "reward.options.default"
        choice = _choice(chosen, where)
        plugins.load().rewards.get(choice.name)
        found[value] = choice
    return found


def _choice(chosen: Any, where: str) -> Choice:
    if isinstance(chosen, str):
        return Choice(chosen, {})
    if isinstance(chosen, Mapping) and isinstance(chosen.get("name"), str) and chosen.keys() <= {"name", "options"}:
        return Choice(chosen["name"], chosen.get("options") or {})
    todo = f"Write {where}=math, or {where}.name=math {where}.options.answer=boxed."
    raise SlimeError(f"{chosen!r:.80} is no reward", where=where, todo=todo)
