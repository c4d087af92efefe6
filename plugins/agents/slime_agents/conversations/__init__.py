"""Programs of several turns, and programs in worker processes: what attempts of one response do without."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import Factory, hookimpl

if TYPE_CHECKING:
    from slime.sampling.programs import ProgramKit


@hookimpl
def slime_conversations() -> Mapping[str, Factory]:
    return {"chat-template": _kit}


def _kit() -> ProgramKit:
    from slime_agents.conversations.isolated import Kit

    return Kit()
