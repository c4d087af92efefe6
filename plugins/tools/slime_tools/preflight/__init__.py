"""Looks at every host of a run before anything loads: the preflight `hosts` and the verb `preflight`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.cluster.preflight import Preflight


def _hosts() -> Preflight:
    from slime_tools.preflight.hosts import Hosts

    return Hosts()


@hookimpl
def slime_preflights() -> Mapping[str, Callable[[], Preflight]]:
    return {"hosts": _hosts}


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    what = "whether every host has what the run needs; loads nothing"
    return {"preflight": VerbFactory(what, "slime_tools.preflight.command")}
