"""Rollouts that go on while trainers work (`rollout.max_staleness` above 0)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import Factory, hookimpl

if TYPE_CHECKING:
    from slime.sampling.loop import Ahead


@hookimpl
def slime_rollouts() -> Mapping[str, Factory]:
    return {"ahead": _ahead}


def _ahead() -> Ahead:
    from slime.sampling.loop import Ahead
    from slime_filters.ahead.gate import EngineGate
    from slime_filters.ahead.rollout import GroupsAhead

    return Ahead(EngineGate, GroupsAhead)
