"""Programs for slime: `tools`, a model that calls functions of yours, and `function`, an async function of yours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime.contracts import Program
from slime.errors import SlimeError
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_programs() -> Mapping[str, Callable[..., Program]]:
    return {"tools": _tools, "function": _function}


@hookimpl
def slime_config_paths() -> Sequence[str]:
    return ["pkg://slime_agents.tools.conf"]


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_agents.tools.options import FunctionOptions, ToolsOptions

    return {"program/tools": ToolsOptions, "program/function": FunctionOptions}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[SlimeError]:
    """Named functions must be there before anything starts."""
    from slime_agents.tools.named import coroutine_function, named

    program, found = cfg.rollout.program, list[SlimeError]()
    names = {"tools": program.options.get("functions", ()), "function": [program.options.get("path", "")]}
    for name in names.get(program.name, ()):
        try:
            if program.name == "function":
                coroutine_function(str(name), "task", "model")
            else:
                named(str(name))
        except SlimeError as problem:
            found.append(problem)
    return found


def _tools(**options: Any) -> Program:
    from slime_agents.tools.options import ToolsOptions
    from slime_agents.tools.program import Tools

    return Tools(ToolsOptions(**options))


def _function(**options: Any) -> Program:
    from slime_agents.tools.options import FunctionOptions
    from slime_agents.tools.program import Function

    return Function(FunctionOptions(**options))
