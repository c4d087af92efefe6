"""Reward `sum`: the weighted sum of several rewards, each of which is a part with a metric of its own."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from slime.by_path.called import PathOptions
from slime.contracts import GroupReward, Reward
from slime.errors import SlimeError, did_you_mean
from slime.types import Sample, Verdict
from slime_rewards.general.route import Choice, judged

KEY = "reward.parts"
_FIELDS = ("weight", "name", "options", "path", "arguments", "sha256")
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Part:
    weight: float
    choice: Choice


@dataclass
class SumReward:
    """A response that one of the parts gives no value has none, and the reason names the part."""

    parts: dict[str, Any]
    """Name of a reward or FILE.py:FUNCTION -> its weight. Or a name of your choice -> `{weight: ..., name: ...,
    options: {...}}`, or `{weight: ..., path: FILE.py:FUNCTION, arguments: {...}}`; a weight is 1 unless set."""

    def __post_init__(self) -> None:
        from slime import plugins  # here, because importing a plugin is to be quick

        self._parts: dict[str, tuple[float, Reward]] = {}
        for label, part in parts_of(vars(self)).items():
            made = plugins.load().rewards.create(part.choice.name, **part.choice.options)
            self._parts[label] = part.weight, made
        if any(isinstance(reward, GroupReward) for _, reward in self._parts.values()):
            self.score_group = self._score_group  # only then is it one of them

    def score(self, sample: Sample) -> Verdict:
        return self._score_group([sample])[0]

    def _score_group(self, samples: Sequence[Sample]) -> list[Verdict]:
        found = [judged(reward, samples) for _, reward in self._parts.values()]
        return [self._sum(dict(zip(self._parts, verdicts, strict=True))) for verdicts in zip(*found, strict=True)]

    def _sum(self, verdicts: Mapping[str, Verdict]) -> Verdict:
        values: dict[str, float] = {}
        inner: dict[str, float] = {}
        for label, verdict in verdicts.items():
            if verdict.value is None:
                return replace(verdict, reason=f"part '{label}': {verdict.reason}", parts={})
            values[label] = verdict.value
            inner |= {f"{label}_{name}": value for name, value in verdict.parts.items()}
        total = math.fsum(self._parts[label][0] * value for label, value in values.items())
        return Verdict.of(total, **{**inner, **values})  # where both bear one name, the part's own is shown

    @staticmethod
    def complete(options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with every part written out, and the digests of files."""
        try:
            parts = parts_of(options)
        except SlimeError:
            return dict(options)  # `problems` tells
        return {**options, "parts": {label: _written(part) for label, part in parts.items()}}


def _written(part: Part) -> dict[str, Any]:
    options = {**part.choice.options}
    if part.choice.name == "function":
        return {"weight": part.weight, **PathOptions.complete(options)}
    return {"weight": part.weight, "name": part.choice.name, **({"options": options} if options else {})}


def parts_of(options: Mapping[str, Any]) -> dict[str, Part]:
    """Name -> weight and reward.

    Raises:
        SlimeError: one is not installed, has no weight, or is written in another way.
    """
    from slime import plugins

    given = options.get("parts")
    if not isinstance(given, Mapping) or not given:
        todo = f"Set for instance {KEY}.math=1, or '{KEY}={{math: 1, my_file.py:score: 0.2}}'."
        raise SlimeError(f"there are no parts{f', but {given!r:.40}' if given else ''}", where=KEY, todo=todo)
    found: dict[str, Part] = {}
    for key, own in given.items():
        label = str(key).rpartition(":")[2]
        if label in found or not _NAME.fullmatch(label):
            todo = f"Name it otherwise: {KEY}.<name>.path={key} {KEY}.<name>.weight=..."
            fault = "is the name of another part" if label in found else "cannot be the name of a part"
            raise SlimeError(f"'{label}' {fault}", where=KEY, todo=todo)
        found[label] = _part(str(key), own)
        if found[label].choice.name != "function":
            try:
                plugins.load().rewards.get(found[label].choice.name)
            except SlimeError as error:
                raise error.under(f"{KEY}.{label}") from error
    return found


def _part(key: str, own: Any) -> Part:
    where = f"{KEY}.{key}"
    fields = {**own} if isinstance(own, Mapping) else {"weight": own}
    for name in fields:
        if name not in _FIELDS:
            raise SlimeError("a part has no such key", where=f"{where}.{name}", todo=did_you_mean(str(name), _FIELDS))
    weight = fields.pop("weight", 1.0)
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight):
        todo = f"Write {where}=0.5, or {where}.weight=0.5."
        raise SlimeError(f"must be a weight, which is a number, got {weight!r:.40}", where=where, todo=todo)
    if ":" in key:
        fields.setdefault("path", key)
    if "path" in fields:
        return Part(float(weight), Choice("function", {name: fields[name] for name in _FIELDS[3:] if name in fields}))
    return Part(float(weight), Choice(str(fields.get("name", key)), fields.get("options") or {}))
