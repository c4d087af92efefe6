"""Megatron-core's optimizer and learning-rate schedule, for the two stages of a run: supervised, then reinforced.

Reinforcement learning starts with fresh Adam moments: the second moments of a supervised stage measure gradients of
another loss, typically orders of magnitude apart, and would scale the first RL steps wrongly. Megatron's fp32 master
weights stay.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler

from megatron_core_portable import FusedAdam
from slime.algo.stages import run_stages
from slime.config.schema import LrDecay, SftConfig, SlimeConfig, TrainConfig
from slime.types import RL, SFT
from slime_megatron.train import settings
from slime_megatron.train.megatron import Model
from slime_megatron.train.slices import save_slices


@dataclass(frozen=True)
class LrSchedule:
    """Peak and final learning rate, and optimizer steps of warm-up and decay, of a stage."""

    stage: str
    max_lr: float
    min_lr: float
    warmup_steps: int
    decay: LrDecay
    decay_steps: int

    @classmethod
    def supervised(cls, sft: SftConfig) -> LrSchedule:
        return cls(SFT, sft.lr, 0.0, sft.lr_warmup_steps, sft.lr_decay, sft.num_steps)

    @classmethod
    def reinforced(cls, train: TrainConfig, optimizer: OptimizerConfig, policy_steps: int) -> LrSchedule:
        """`policy_steps`: optimizer steps of the stage."""
        steps, min_lr = train.lr_decay_steps or policy_steps, optimizer.min_lr or 0.0
        return cls(RL, optimizer.lr, min_lr, train.lr_warmup_steps, train.lr_decay, steps)


def scheduler_of(optimizer: Any, schedule: LrSchedule, weight_decay: float) -> OptimizerParamScheduler:
    """Megatron-core's scheduler, at the learning rate of the first step.

    Step n of a warm-up of w steps has n / (w + 1) of the peak, and step w + 1 all of it. Upstream begins at 0, which
    costs pre-training one step in a hundred thousand, and reinforcement learning a whole rollout.
    """
    for group in optimizer.param_groups:
        group["max_lr"], group["min_lr"] = schedule.max_lr, schedule.min_lr
    return OptimizerParamScheduler(
        optimizer,
        init_lr=schedule.max_lr / (schedule.warmup_steps + 1),
        max_lr=schedule.max_lr,
        min_lr=schedule.min_lr,
        lr_warmup_steps=schedule.warmup_steps,
        lr_decay_steps=_decay_end(schedule),
        lr_decay_style=schedule.decay.value,
        start_wd=weight_decay,
        end_wd=weight_decay,
        wd_incr_steps=1,
        wd_incr_style="constant",
    )


class Optimizer:
    """The distributed optimizer with the schedule of the current stage.

    Attributes:
        megatron: Megatron-core's optimizer; one for dense parameters and one for experts, chained.
        stage: name of the current one, "" before the first step.
    """

    def __init__(self, cfg: SlimeConfig, model: Model) -> None:
        self._cfg, self._traits = cfg, model.traits
        self._config = settings.optimizer_config(cfg.train, on_gpus=cfg.cluster.on_gpus)
        self.megatron = get_megatron_optimizer(self._config, model.chunks)
        for part in parts_of(self.megatron):
            if part.optimizer is not None:
                _drop_classes(part.optimizer)
                save_slices(part)
        model.config.grad_scale_func = self.megatron.scale_loss
        self.stage = ""
        self.scheduler: OptimizerParamScheduler

    @property
    def unfrozen_by(self) -> list[str]:
        """Config keys that are set and unfreeze a part of the model."""
        return [trait.learns_by for trait in self._traits if trait.coefficient(self._cfg.train)]

    def enter(self, stage: str) -> None:
        """Switch to the schedule of `stage`, with fresh moments; nothing happens if it is the current one."""
        if stage == self.stage:
            return
        for adam in self.adams():
            forget(adam)
        self.set_schedule(stage)

    def set_schedule(self, stage: str) -> None:
        """Take up the schedule of `stage` from its beginning, moments as they are."""
        if stage == SFT:
            schedule = LrSchedule.supervised(self._cfg.sft)
        else:
            steps = run_stages(self._cfg)[stage].policy_steps
            schedule = LrSchedule.reinforced(self._cfg.train, self._config, steps)
        self.scheduler = scheduler_of(self.megatron, schedule, self._config.weight_decay)
        self.stage = stage

    def step(self) -> tuple[float, float]:
        """One step over the gradients that lie ready; returns (gradient norm before clipping, learning rate)."""
        lr = max(group["lr"] for group in self.megatron.param_groups)
        updated, grad_norm, _ = self.megatron.step()
        assert updated, "bf16 and fp32 never skip a step"
        self.scheduler.step(increment=1)
        return float(grad_norm), lr

    def adams(self) -> list[torch.optim.Optimizer]:
        """The inner optimizers of this rank: FusedAdam, or HybridDeviceOptimizer where Adam runs on the CPU."""
        return [part.optimizer for part in parts_of(self.megatron) if part.optimizer is not None]

    def after_load_of_model(self) -> None:
        """Take the master weights again from the model's parameters."""
        with torch.no_grad():
            self.megatron.reload_model_params()


def forget(adam: torch.optim.Optimizer) -> None:
    """Start over, with zero moments at step 0; master weights stay."""
    if isinstance(adam, FusedAdam):
        adam.forget()
        return
    for part in adam.sub_optimizers:  # type: ignore[attr-defined]
        for group in part.param_groups:
            group.pop("step", None)
            # There from now on: a checkpoint may come before the first step, as where a critic learns alone.
            part.state.update({x: _nothing(x) for x in group["params"]})
    adam._sync_sub_optimizers_state_to_hdo()  # type: ignore[attr-defined]


def _nothing(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """torch's AdamW before its first step."""
    moments = torch.zeros_like(parameter), torch.zeros_like(parameter)
    return {"step": torch.zeros((), dtype=torch.float32), "exp_avg": moments[0], "exp_avg_sq": moments[1]}


def _drop_classes(adam: torch.optim.Optimizer) -> None:
    """HybridDeviceOptimizer repeats its constructor's arguments in every group, classes included, which it reads from
    `defaults` alone; groups are saved with checkpoints, and torch loads no classes from a file."""
    for group in adam.param_groups:
        for name in [name for name, value in group.items() if isinstance(value, type)]:
            del group[name]


def parts_of(optimizer: Any) -> list[Any]:
    """The chained optimizers, or the only one."""
    return list(getattr(optimizer, "chained_optimizers", [optimizer]))


def _decay_end(schedule: LrSchedule) -> int:
    """Megatron-core wants the decay to end after the warm-up, even when nothing decays."""
    if schedule.decay is LrDecay.constant:
        return max(schedule.decay_steps, schedule.warmup_steps + 1)
    return schedule.decay_steps
