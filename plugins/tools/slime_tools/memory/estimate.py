"""The estimate as the engine asks for it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slime.errors import SlimeError
from slime.sizes.model import ModelSizes
from slime.topology.topology import Topology
from slime_tools.memory import problems, text
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.memory.peaks import peaks_of


@dataclass(frozen=True)
class GpuMemory:
    """`slime.sizes.estimate.MemoryEstimate` of a run on GPUs."""

    plan: MemoryPlan

    @classmethod
    def of(cls, sizes: ModelSizes) -> GpuMemory:
        return cls(MemoryPlan.of(sizes))

    def under(self, topology: Topology) -> GpuMemory:
        return GpuMemory(dataclasses.replace(self.plan, topology=topology))

    def problems(self) -> Iterator[SlimeError]:
        return problems.memory_problems(self.plan)

    def warnings(self) -> Iterator[SlimeError]:
        return problems.memory_warnings(self.plan)

    def fit_together(self) -> bool:
        return problems.fit_together(self.plan)

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        return text.memory_sections(self.plan)

    def document(self) -> dict[str, Any]:
        return text.document(self.plan)

    def peaks(self) -> dict[str, float]:
        return peaks_of(self.plan)
