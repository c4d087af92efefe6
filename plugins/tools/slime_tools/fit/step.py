"""What a plan says of the seconds of a step: the estimate of `slime plan --fit`, of the layout that the config has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from slime.algo.stages import run_stages
from slime.config.gpus import gpu_of
from slime.plan.flops import ForwardFlops
from slime.sizes.model import ModelSizes
from slime.types import RL
from slime_tools.fit.candidate import PUBLISH
from slime_tools.fit.estimate import Layout, training_seconds, work_of
from slime_tools.fit.generation import EVALUATION, GENERATION, engine_seconds
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.publish.part import publish_links, publish_seconds

TRAINING = "training"
_UNITS = ((86_400, "days"), (3_600, "hours"), (60, "minutes"), (1, "seconds"))


class StepSeconds:
    """A `slime.sizes.estimate.PlanPart`.

    Attributes:
        seconds: of a step, by part; none where no GPU's rates or memory are known.
        num_steps: of reinforcement learning, or else of the supervised stage.
    """

    def __init__(self, sizes: ModelSizes) -> None:
        cfg = sizes.topology.config
        stages, known = run_stages(cfg), cfg.cluster.on_gpus and gpu_of(cfg.cluster) and cfg.cluster.device_memory_mb
        self.seconds = _seconds(MemoryPlan.of(sizes)) if known else {}
        self.num_steps = stages[RL].num_steps if stages.reinforces else sum(stage.num_steps for stage in stages.all)

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        if self.seconds:
            yield "seconds of a step, by estimate", [f"  {part:<14}{value:>10,.1f}" for part, value in self._parts()]

    def brief(self) -> dict[str, str]:
        if not self.seconds or not math.isfinite(self.total):
            return {}
        parts = ", ".join(f"{part} {value:,.1f}" for part, value in self._parts()[:-1] if value >= 0.05)
        whole = f"{self.num_steps:,} steps take {_in_words(self.total * self.num_steps)}"
        return {"seconds": f"about {self.total:,.0f} a step, by estimate ({parts}); {whole}"}

    def document(self) -> Mapping[str, Any]:
        known = self.seconds and math.isfinite(self.total)
        return {"step_seconds": {part: round(value, 3) for part, value in self._parts()} if known else None}

    def _parts(self) -> list[tuple[str, float]]:
        return [*self.seconds.items(), ("total", self.total)]


def _seconds(plan: MemoryPlan) -> dict[str, float]:
    cfg, work = plan.cfg, work_of(plan.cfg)
    trained = ForwardFlops(plan.model, plan.weights, work.tokens)
    found = {TRAINING: sum(training_seconds(work, trained, Layout.of(plan), plan.trainers).values())}
    if run_stages(cfg).reinforces:
        engines = engine_seconds(cfg, work, plan.engines.values())
        publish = publish_seconds(plan, publish_links(plan.topology, plan.weights, plan.model))
        named = {GENERATION: engines.get(GENERATION), PUBLISH: publish and publish.total}
        found |= {part: value for part, value in {**named, EVALUATION: engines.get(EVALUATION)}.items() if value}
    return found


def _in_words(seconds: float) -> str:
    size, unit = next((each for each in _UNITS if seconds >= 2 * each[0]), _UNITS[-1])
    return f"{seconds / size:,.1f} {unit}"
