"""A run's uses of the sandbox and of tests: problems before it begins, and the part of `slime plan`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slime.config.schema import ProgramConfig, RewardConfig, SetConfig
from slime.sizes.model import ModelSizes
from slime_rewards.code.labels import cases_of
from slime_rewards.code.reward import LOCAL
from slime_rewards.labels import JudgedSet

TOOL = "slime_rewards.code.tool:python"


def rewards(reward: RewardConfig, sets: Mapping[str, SetConfig]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The key and the options of each reward `code`: the run's, and those of named sets."""
    if reward.name == "code":
        yield "reward", reward.options
    for home, own in sets.items():
        if own.reward == "code":
            yield f"{home}.reward", own.reward_options


def tools(program: ProgramConfig, sets: Mapping[str, SetConfig]) -> Iterator[str]:
    """The key of each list of functions that has the tool `python`."""
    if program.name == "tools" and TOOL in program.options.get("functions", ()):
        yield "rollout.program.options.functions"
    for home, own in sets.items():
        if own.program == "tools" and TOOL in own.program_options.get("functions", ()):
            yield f"{home}.program_options.functions"


def sandbox_problems(reward: RewardConfig, program: ProgramConfig, sets: Mapping[str, SetConfig]) -> Iterator[str]:
    """Programs would run unconfined, which they do if `unconfined` says so alone."""
    for key, options in rewards(reward, sets):
        of_options = "reward.options" if key == "reward" else f"{key}_options"
        where = options.get("sandbox", LOCAL)
        if options.get("unconfined"):
            continue
        if where != LOCAL and not where.startswith(("http://", "https://")):
            yield f"{of_options}.sandbox={where} is neither {LOCAL} nor a URL that begins with http:// or https://"
        if where == LOCAL and (lacks := _missing()):
            elsewhere = f"{of_options}.sandbox=http://HOST:8080 runs programs at a server of SandboxFusion's form"
            named = "reward.name=code" if key == "reward" else f"{key}=code"
            yield f"{named}: the sandbox cannot be had here: {lacks}; {elsewhere}"
    for key in tools(program, sets):
        if lacks := _missing():
            yield f"{key}: the sandbox of {TOOL} cannot be had here: {lacks}; leave this tool out"


def label_problems(sets: Iterable[JudgedSet]) -> Iterator[str]:
    """A sentence for each prompt set of which the reward could not judge the first rows."""
    for judged in (each for each in sets if each.reward == "code"):
        if judged.label_key is None:
            yield f"reward=code runs the tests of a label: {judged.stated_by}=null leaves it out"
            continue
        for label, row in judged.first_labels():
            try:
                cases_of(label)
            except ValueError as problem:
                yield f"{judged.key}: '{judged.label_key}' in {row.where} has no tests for reward=code: {problem}"
                break


def _missing() -> str:
    from slime_rewards.code.sandbox import missing  # here, because most runs use none

    return missing()


class SandboxPart:
    """A `slime.sizes.estimate.PlanPart`: what confines programs on the machine of the plan, where some are run here."""

    def __init__(self, sizes: ModelSizes) -> None:
        cfg = sizes.topology.config
        sets = {**cfg.data.named(), **cfg.eval.named()}
        local = [options for _, options in rewards(cfg.reward, sets) if options.get("sandbox", LOCAL) == LOCAL]
        self._is_used = bool(local or any(tools(cfg.rollout.program, sets)))
        self._unconfined = any(options.get("unconfined") for options in local)

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        if self._is_used:
            yield "sandbox", [f"  {self._line()}"]

    def brief(self) -> Mapping[str, str]:
        return {"sandbox": self._line()} if self._is_used else {}

    def document(self) -> Mapping[str, Any]:
        return {"sandbox": self._line() if self._is_used else None}

    def _line(self) -> str:
        found = f"none: {lacks}" if (lacks := _missing()) else _used()
        return found + "; the reward runs unconfined (unconfined=true)" * self._unconfined


def _used() -> str:
    from slime_rewards.code.confine import SCOPES_FROM
    from slime_rewards.code.sandbox import features

    landlock, namespaces = features()
    scopes = "with" if landlock >= SCOPES_FROM else "without"
    return f"seccomp, Landlock {landlock} {scopes} scopes, {'' if namespaces else 'no '}namespaces"
