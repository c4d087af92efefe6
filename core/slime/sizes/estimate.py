"""What an estimate of a run's memory answers, and where the installed one is asked. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from slime.config.hf import read_hf_config
from slime.errors import SlimeError
from slime.models.bridge import HfConfig, ModelBridge
from slime.plugins import Plugins
from slime.sizes.model import keywords_of, sizes_of
from slime.sizes.parameters import unknown_parameter
from slime.topology.topology import Topology

KIND = "memory_estimate"


class PlanPart(Protocol):
    """What a plan says of one thing; plugins bring more of them (hook `slime_plan_parts`)."""

    def sections(self) -> Iterable[tuple[str, list[str]]]:
        """Title and lines of each section of the plan's text."""

    def brief(self) -> Mapping[str, str]:
        """Label -> line of the plan's one screen; nothing, if it is not worth one."""

    def document(self) -> Mapping[str, Any]:
        """Fields of `slime plan --json` (docs/plan.md), as plain values; `memory` and `pools` of a `MemoryEstimate`."""


class MemoryEstimate(PlanPart, Protocol):
    """What the devices and hosts of one run will hold. `slime-tools` brings the one for GPUs."""

    def under(self, topology: Topology) -> MemoryEstimate:
        """The same run under other settings of the same layout."""

    def problems(self) -> Iterable[SlimeError]:
        """What does not fit."""

    def warnings(self) -> Iterable[SlimeError]:
        """What fits by less than the error of the estimate."""

    def fit_together(self) -> bool:
        """Whether trainers and engines that share GPUs could both stay there all the time, and nobody chose."""

    def peaks(self) -> dict[str, float]:
        """GiB by name of a metric: `memory/train_planned_gib` stands beside `memory/train_gib`, which is measured."""


def estimate_memory(topology: Topology, bridge: ModelBridge, hf: HfConfig, plugins: Plugins) -> MemoryEstimate | None:
    """None where nothing that is installed estimates these devices, and of a family with blocks of its own, whose
    sizes are not known."""
    mapping, registry = bridge.weight_mapping(hf), plugins.registries[KIND]
    if topology.cluster.device.name not in registry or unknown_parameter(mapping):
        return None
    model = keywords_of(topology.config.train.megatron, bridge, hf)
    made: MemoryEstimate = registry.create(topology.cluster.device.name, sizes=sizes_of(topology, model, mapping))
    return made


def planned_peaks(topology: Topology, plugins: Plugins) -> dict[str, float]:
    """`MemoryEstimate.peaks` of a run whose model is there; nothing where there is no estimate."""
    model = topology.config.model
    hf = read_hf_config(model.path, model.num_layers)
    estimate = estimate_memory(topology, plugins.models.create(model.family), hf, plugins)
    return estimate.peaks() if estimate else {}
