"""What a run writes to its directory and what is fetched before it: bytes by sizes, as plans say it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.algo.stages import Stages, run_stages
from slime.compose.needs import CAST, is_awaited
from slime.config.hf import QUANTIZATION, config_folder, read_hf_config
from slime.config.schema import CheckpointConfig, ModelConfig
from slime.files import human_bytes
from slime.sizes.model import ModelSizes
from slime.sizes.parameters import Weight
from slime_tools.memory.memory_plan import MemoryPlan

WIDTHS = {"float32": 4, "fp8": 1}
"""Bytes of a published weight, by its type; of all others 2."""


@dataclass(frozen=True)
class Written:
    """Bytes that a run leaves in its directory.

    Attributes:
        checkpoint: one: weights, masters and moments.
        num_checkpoints: that lie there at most: one more than are kept, while the newest is written.
        export: the weights at its end.
        samples: what `observe.samples_mb` allows.
    """

    checkpoint: float
    num_checkpoints: int
    export: float
    samples: float

    @property
    def total(self) -> float:
        return self.checkpoint * self.num_checkpoints + self.export + self.samples


def written(plan: MemoryPlan) -> Written:
    cfg, stages = plan.cfg, run_stages(plan.cfg)
    checkpoints, precision = cfg.train.checkpoint, plan.trainers[0].precision
    num_weights = sum(weight.numel for weight in plan.weights)
    num_saved = num_weights + (sum(each.numel for each in plan.critic_weights) if stages.have_critic else 0)
    owned = sum(rank.owned + rank.owned_of_critic for rank in plan.trainers) * plan.grid.world_size / plan.grid.pp
    return Written(
        checkpoint=precision.weight * num_saved + precision.optimizer * owned,
        num_checkpoints=min(checkpoints.keep + 1, _num_saves(checkpoints, stages)),
        export=float(precision.weight * num_weights if checkpoints.export_hf else 0),
        samples=cfg.observe.samples_mb * 1e6 if plan.topology.generates else 0.0,
    )


def _num_saves(checkpoints: CheckpointConfig, stages: Stages) -> int:
    if checkpoints.interval is None:
        return 0
    steps = [stage.num_steps for stage in stages]
    return sum(-(-count // checkpoints.interval) if checkpoints.interval else int(count > 0) for count in steps)


def download_bytes(weights: Sequence[Weight], model: ModelConfig) -> float:
    """Of the safetensors of a model as it is published, by its config.json."""
    hf = read_hf_config(config_folder(model))
    is_fp8 = QUANTIZATION in hf or model.path == f"{model.source}{CAST}"
    kind = "fp8" if is_fp8 else str(hf.get("dtype") or hf.get("torch_dtype"))
    return float(WIDTHS.get(kind, 2) * sum(weight.numel for weight in weights))


class Disk:
    """A `slime.sizes.estimate.PlanPart`; its attributes are bytes: `download` of the model, 0 where it is here, and
    `copies` of the trainers' state in a host's memory."""

    def __init__(self, sizes: ModelSizes) -> None:
        cfg = sizes.topology.config
        plan = MemoryPlan.of(sizes)
        self.written, self.copies = written(plan), plan.shared_memory
        self.download = 0.0
        if is_awaited(cfg.model.path, cfg.model.source):
            self.download = download_bytes(sizes.weights, cfg.model)

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        yield "disk", [f"  {line}" for line in self.brief().values()]

    def brief(self) -> dict[str, str]:
        its = self.written
        kinds = {
            f"{its.num_checkpoints} checkpoints of {human_bytes(its.checkpoint)}": its.num_checkpoints,
            f"the export {human_bytes(its.export)}": its.export,
            f"samples {human_bytes(its.samples)}": its.samples,
        }
        parts = ", ".join(text for text, size in kinds.items() if size)
        fetched = f"; the model is a download of {human_bytes(self.download)}" if self.download else ""
        copies = f"; copies in memory: {human_bytes(self.copies)} of a host's /dev/shm" if self.copies else ""
        return {"disk": f"writes {human_bytes(its.total)} at most" + (f": {parts}" if parts else "") + fetched + copies}

    def document(self) -> Mapping[str, Any]:
        sizes = {name: round(value) for name, value in vars(self.written).items()}
        return {"disk": {**sizes, "download": round(self.download), "copies": round(self.copies)}}
