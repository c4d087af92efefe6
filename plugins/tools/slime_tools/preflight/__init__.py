"""Looks at every host of a run before anything loads: the preflight `hosts` and the verb `preflight`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.run_dir import RunDir
    from slime.topology.topology import Topology


def _hosts(topology: Topology, run: RunDir, nodes: Collection[str], writes: bool) -> None:
    from slime_tools.preflight.hosts import require_ready

    require_ready(topology, run, nodes, writes)


@hookimpl
def slime_preflights() -> Mapping[str, Callable[..., None]]:
    return {"hosts": _hosts}


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    what = "whether every host has what the run needs; loads nothing"
    return {"preflight": VerbFactory(what, "slime_tools.preflight.command")}
