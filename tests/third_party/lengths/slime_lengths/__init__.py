"""A verb: `slime lengths RUN`, how long the responses of each step are."""

from __future__ import annotations

from collections.abc import Mapping

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    return {"lengths": VerbFactory("how long the responses of each step are", "slime_lengths.command")}
