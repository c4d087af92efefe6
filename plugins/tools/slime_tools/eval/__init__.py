"""Scores a run's checkpoint, or an HF folder, on held-out prompts: the verb `eval`."""

from __future__ import annotations

from collections.abc import Mapping

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    what = "score a run's checkpoint, or an HF folder, on held-out prompts"
    return {"eval": VerbFactory(what, "slime_tools.eval.command")}
