"""The rules of the engines' software, asked of whatever is installed that knows them. No torch."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Protocol

from slime import plugins
from slime.errors import SlimeError
from slime.extras import how_to_get
from slime.models.blocks import BuildingBlock
from slime.topology.topology import Topology

KIND = "engine_check"


class EngineCheck(Protocol):
    """What the software of engines refuses, or changes without a word. `slime-sglang` has SGLang's."""

    def __call__(
        self, topology: Topology, model: Mapping[str, Any], blocks: Collection[BuildingBlock]
    ) -> Iterable[SlimeError]:
        """The rules that the engine groups break, one for each key.

        Args:
            model: keywords of Megatron's TransformerConfig.
            blocks: that the model is built of.
        """


def engine_check_problems(
    topology: Topology, model: Mapping[str, Any], blocks: Collection[BuildingBlock]
) -> Iterator[SlimeError]:
    """What every installed `EngineCheck` says."""
    registry = plugins.load().registries[KIND]
    for chosen in registry:
        check: EngineCheck = registry.create(chosen.name)
        yield from check(topology, model, blocks)


def unchecked(topology: Topology) -> Iterator[SlimeError]:
    """Says that nobody was asked, of a run that has engines."""
    if topology.generates and not [*plugins.load().registries[KIND]]:
        todo = how_to_get(f"{KIND}/sglang")
        yield SlimeError("was held against no rules of SGLang", where="rollout.sglang", todo=todo)
