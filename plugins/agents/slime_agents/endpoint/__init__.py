"""The program `endpoint` for slime: trains an agent program that speaks the OpenAI or the Anthropic API, by its URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slime.contracts import Program, VerbFactory
from slime.errors import SlimeError
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import SlimeConfig


@hookimpl
def slime_programs() -> Mapping[str, Callable[..., Program]]:
    return {"endpoint": _endpoint}


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    what = "try a model's chat template on conversations of several turns"
    return {"check-chat": VerbFactory(what, "slime_agents.endpoint.check_chat")}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_agents.endpoint.options import EndpointOptions

    return {"program/endpoint": EndpointOptions}


@hookimpl
def slime_check(cfg: SlimeConfig) -> Sequence[SlimeError]:
    """The agent must be named, and a function of that name be there, before anything starts."""
    from slime_agents.endpoint.options import EndpointOptions, check

    program = cfg.rollout.program
    if program.name != "endpoint":
        return []
    if program.environment:
        what, todo = "an agent's command is no worker", "Name the variables in rollout.program.options.environment."
        return [SlimeError(what, where="rollout.program.environment", todo=todo)]
    try:
        check(EndpointOptions(**program.options))
    except SlimeError as problem:
        return [problem]
    return []


def _endpoint(**options: Any) -> Program:
    from slime_agents.endpoint.options import EndpointOptions
    from slime_agents.endpoint.program import EndpointProgram

    return EndpointProgram(EndpointOptions(**options))
