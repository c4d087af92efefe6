"""What SGLang refuses, or changes without a word, of an engine's fields: asked by `slime plan` and before a run."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.errors import SlimeError
    from slime.models.blocks import BuildingBlock
    from slime.topology.topology import Topology


def _rules(topology: Topology, model: Mapping[str, Any], blocks: Collection[BuildingBlock]) -> Collection[SlimeError]:
    from slime_sglang.rules.rules import sglang_problems

    return sglang_problems(topology, model, blocks)


@hookimpl
def slime_engine_checks() -> Mapping[str, Callable[..., Collection[SlimeError]]]:
    return {"sglang": _rules}
