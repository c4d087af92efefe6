"""Checkpoints from one format into another, tensor by tensor, at any size: the verb `convert`."""

from __future__ import annotations

from collections.abc import Mapping

from slime.contracts import VerbFactory
from slime.hookspecs import hookimpl


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    return {
        "convert": VerbFactory(
            "checkpoints into other formats: FP8, BF16, Megatron-core, HF", "slime_tools.convert.command"
        ),
        "plan convert": VerbFactory("what a conversion would read, write and take", "slime_tools.convert.plan"),
    }
