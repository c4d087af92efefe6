"""The rules of the engines' software, asked of whatever is installed that knows them (hook `slime_engine_checks`)."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from slime import plugins
from slime.errors import SlimeError
from slime.extras import how_to_get
from slime.models.blocks import BuildingBlock
from slime.topology.topology import Topology

KIND = "engine_check"


def engine_check_problems(
    topology: Topology, model: Mapping[str, Any], blocks: Collection[BuildingBlock]
) -> Iterator[SlimeError]:
    """What every installed check says. `model`: keywords of Megatron's TransformerConfig; `blocks`: it is built of
    them."""
    for check in plugins.load().registries[KIND]:
        yield from check.factory(topology, model, blocks)


def unchecked(topology: Topology) -> Iterator[SlimeError]:
    """Says that nobody was asked, of a run that has engines."""
    if topology.generates and not [*plugins.load().registries[KIND]]:
        todo = how_to_get(f"{KIND}/sglang")
        yield SlimeError("was held against no rules of SGLang", where="rollout.sglang", todo=todo)
