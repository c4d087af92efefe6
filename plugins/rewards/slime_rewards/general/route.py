"""Reward `route`: another reward for each value of a column, so that one run trains on several kinds of prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.contracts import GroupReward, Reward, RewardModel
from slime.errors import SlimeError
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
        if isinstance(reward, GroupReward):
            return reward.score_group(samples)
        return [reward if isinstance(reward, Verdict) else _scored(reward, sample) for sample in samples]

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


def _scored(reward: RewardModel, sample: Sample) -> Verdict:
    """The verdict; an exception costs this sample alone."""
    try:
        return reward.score(sample)
    except Exception as error:  # noqa: BLE001  (a plugin's code)
        from guarded_workers.worker import describe  # here, because importing a plugin is to be quick

        return Verdict.error(describe(error))


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
