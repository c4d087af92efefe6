"""The facts that the rules about SGLang's fields look at."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from slime.config.schema import ClusterConfig
from slime.errors import SlimeError
from slime.models.blocks import BuildingBlock
from slime.topology.engines import EngineGroup
from slime.topology.quantization import choices
from slime.topology.topology import Topology


@dataclass(frozen=True)
class Asked:
    """One group's fields, the model's sizes by Megatron's names, and its building blocks."""

    topology: Topology
    group: EngineGroup
    model: Mapping[str, Any]
    blocks: Collection[BuildingBlock] = ()

    @property
    def cluster(self) -> ClusterConfig:
        return self.topology.cluster

    @property
    def quantizes(self) -> bool:
        """Whether engines hold weights in fewer bits than they are trained in; frozen ones hold them as they are."""
        return self.group.model is None and bool(choices(self.topology.config.rollout))

    def get(self, key: str, default: Any = None) -> Any:
        return self.group.sglang.get(key, default)

    @property
    def page(self) -> int:
        """Tokens of a page that the model's blocks need; 1: any number."""
        return max((block.page for block in self.blocks), default=1)

    def is_own(self, key: str) -> bool:
        """Whether the group itself sets a field, or is the only one for which it is set."""
        has_others = self.group.model is not None or len(self.topology.groups) > 1
        return key in (self.group.own_fields if has_others else self.group.sglang)

    def problem(self, key: str, what: str, todo: str) -> SlimeError:
        if self.group.model is None or self.is_own(key) or key not in self.group.sglang:
            return SlimeError(what, where=self.group.home_of(key), todo=todo)
        own = f"rollout.engines.{self.group.name}.sglang.{key}"
        todo = f"Set it here, or move rollout.sglang.{key} to the groups that it is for."
        return SlimeError(f"{what} (by rollout.sglang)", where=own, todo=todo)
