"""Layouts that fit a cluster, the fastest first (`slime plan --fit`), and a step that measures one (`slime probe`)."""

from __future__ import annotations

from collections.abc import Mapping

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    probe = "one step at full length with random weights: seconds and memory beside the plan's"
    return {
        "plan --fit": VerbFactory(
            "propose layouts that fit the cluster, the fastest first", "slime_tools.fit.fit_verb"
        ),
        "probe": VerbFactory(probe, "slime_tools.fit.probe_verb"),
    }
