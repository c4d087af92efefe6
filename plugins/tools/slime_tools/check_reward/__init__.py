"""Tries a reward on a prompt set: the verb `check-reward`."""

from __future__ import annotations

from collections.abc import Mapping

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    what = "try a reward on right, wrong and hostile responses to a prompt set"
    return {"check-reward": VerbFactory(what, "slime_tools.check_reward.command")}
