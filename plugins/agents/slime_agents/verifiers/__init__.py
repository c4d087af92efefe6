"""Environments of verifiers for slime: a program that plays them in their interpreter, and their tasks as prompts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slime.contracts import Program
from slime.errors import SlimeError
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@dataclass
class VerifiersOptions:
    python: str = ""
    """The interpreter that has verifiers and the task sets; empty: the variable SLIME_VERIFIERS_PYTHON names it."""
    memory_mb: int = 4096
    """MiB that the processes of an attempt may take together."""
    environment: list[str] = field(default_factory=list)
    """Variables of the environment that they get although they look like secrets."""


@hookimpl
def slime_programs() -> Mapping[str, Callable[..., Program]]:
    return {"verifiers": _verifiers}


@hookimpl
def slime_prompt_sets() -> Mapping[str, Callable[[str], Path]]:
    return {"verifiers": _rows}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    return {"program/verifiers": VerifiersOptions}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[SlimeError]:
    """The interpreter must be there before anything starts."""
    program = cfg.rollout.program
    if program.name != "verifiers":
        return []
    from slime_agents.verifiers.interpreter import named

    try:
        named(program.options.get("python", ""))
    except SlimeError as problem:
        return [problem]
    return []


def _verifiers(**options: Any) -> Program:
    import shlex

    from slime_agents.endpoint.options import EndpointOptions
    from slime_agents.endpoint.program import EndpointProgram
    from slime_agents.verifiers.interpreter import command, named

    chosen = VerifiersOptions(**options)
    words = shlex.join(command(named(chosen.python)))
    return EndpointProgram(EndpointOptions(words, memory_mb=chosen.memory_mb, environment=chosen.environment))


def _rows(address: str) -> Path:
    from slime_agents.verifiers.rows import rows_of

    return rows_of(address)
