"""The plugin: programs of several turns, rewards and prompt sets of environments, and `slime check-chat`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from slime.contracts import Program, RewardModel, VerbFactory
from slime.errors import SlimeError
from slime.hookspecs import Factory, hookimpl, later

if TYPE_CHECKING:
    from slime.config.schema import RolloutConfig

_OPTIONS = "rollout.program.options"
CLASSES = {
    "program/endpoint": ("endpoint.program:EndpointProgram", "endpoint.options:EndpointOptions"),
    "program/function": ("tools.program:Function", "tools.options:FunctionOptions"),
    "program/gym": ("gym.program:Gym", "gym.options:GymOptions"),
    "program/tools": ("tools.program:Tools", "tools.options:ToolsOptions"),
    "reward/reasoning-gym": ("gym.verdicts:ReasoningGymReward", "gym.options:ReasoningGymOptions"),
}
"""Classes, and those of their options."""


@hookimpl
def slime_programs() -> Mapping[str, Callable[..., Program]]:
    names = ("endpoint", "function", "gym", "tools")
    return {**{name: partial(_made, *CLASSES[f"program/{name}"]) for name in names}, "verifiers": _verifiers}


@hookimpl
def slime_rewards() -> Mapping[str, Callable[..., RewardModel]]:
    return {"reasoning-gym": partial(_made, *CLASSES["reward/reasoning-gym"])}


@hookimpl
def slime_prompt_sets() -> Mapping[str, Callable[[str], Path]]:
    return {
        "reasoning-gym": later("slime_agents.gym.rows:rows_of"),
        "verifiers": later("slime_agents.verifiers.interpreter:rows_of"),
    }


@hookimpl
def slime_conversations() -> Mapping[str, Factory]:
    return {"chat-template": later("slime_agents.conversations.isolated:Kit")}


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    what = "try a model's chat template on conversations of several turns"
    return {"check-chat": VerbFactory(what, "slime_agents.endpoint.check_chat")}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_agents.gym.conf", "pkg://slime_agents.tools.conf"]


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_agents.verifiers.interpreter import VerifiersOptions

    schemas = {name: resolve_name(f"slime_agents.{options}") for name, (_, options) in CLASSES.items()}
    return {**schemas, "program/verifiers": VerifiersOptions}


@hookimpl
def slime_check(rollout: RolloutConfig) -> Sequence[SlimeError]:
    """What a program names must be there, and be of the form that it needs, before anything starts."""
    program = rollout.program
    options, found = program.options, list[SlimeError]()
    if program.name == "endpoint" and program.environment:
        what, todo = "an agent's command is no worker", f"Name the variables in {_OPTIONS}.environment."
        return [SlimeError(what, where="rollout.program.environment", todo=todo)]
    for named in options.get("functions", ()) if program.name == "tools" else [""]:
        try:
            _check(program.name, options, str(named))
        except SlimeError as problem:
            found.append(problem)
    if program.name == "gym" and not found and options.get("max_turns", 1) < 1:
        found.append(SlimeError("must be at least 1", where=f"{_OPTIONS}.max_turns", todo="Raise it."))
    return found


def _check(program: str, options: Mapping[str, Any], function: str) -> None:
    """Raises SlimeError: the program's class, function (of tools: this one), command or interpreter is not there."""
    if program == "endpoint":
        from slime_agents.endpoint.options import EndpointOptions, check

        check(EndpointOptions(**options))
    elif program == "gym":
        from slime_agents.gym.program import check_arguments

        check_arguments(str(options.get("path", "")), options.get("arguments") or {})
    elif program in ("tools", "function"):
        from slime_agents.tools.named import coroutine_function, named

        if program == "tools":
            named(function)
        else:
            coroutine_function(str(options.get("path", "")), "task", "model")
    elif program == "verifiers":
        from slime_agents.verifiers import interpreter

        interpreter.named(options.get("python", ""))


def _made(made: str, options: str, /, **given: Any) -> Any:
    """An object of a class by its options, whose modules are imported here."""
    return resolve_name(f"slime_agents.{made}")(resolve_name(f"slime_agents.{options}")(**given))


def _verifiers(**options: Any) -> Program:
    from slime_agents.verifiers.interpreter import VerifiersOptions, command, named

    chosen = VerifiersOptions(**options)
    words = shlex.join(command(named(chosen.python)))
    endpoint: Program = _made(
        *CLASSES["program/endpoint"], command=words, memory_mb=chosen.memory_mb, environment=chosen.environment
    )
    return endpoint
