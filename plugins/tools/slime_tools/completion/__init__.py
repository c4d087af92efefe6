"""Completes the commands of slime in a shell: the verb `completion`."""

from __future__ import annotations

from collections.abc import Mapping

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    what = "print a script that completes commands in bash, zsh or fish"
    return {"completion": VerbFactory(what, "slime_tools.completion.command")}
