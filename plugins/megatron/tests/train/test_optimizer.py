"""The learning rate of every step, as Megatron-core's scheduler gives it to the optimizer."""

from __future__ import annotations

import pytest
import torch

from slime.algo.stages import run_stages
from slime.config.schema import LrDecay, SlimeConfig
from slime.types import SFT
from slime_megatron.train.optimizer import LrSchedule, scheduler_of
from slime_megatron.train.settings import optimizer_config

PEAK = 0.6


def schedule_of(cfg: SlimeConfig, stage: str) -> LrSchedule:
    if stage == SFT:
        return LrSchedule.supervised(cfg.sft)
    optimizer = optimizer_config(cfg.train, on_gpus=False)
    return LrSchedule.reinforced(cfg.train, optimizer, run_stages(cfg)[stage].policy_steps)


def rates(schedule: LrSchedule, num_steps: int) -> list[float]:
    """What each of the first steps is taken with."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.0)
    scheduler, found = scheduler_of(optimizer, schedule, 0.0), []
    for _ in range(num_steps):
        found.append(optimizer.param_groups[0]["lr"])
        scheduler.step(increment=1)
    return found


@pytest.mark.parametrize("stage", ["sft", "rl"])
@pytest.mark.parametrize(("warmup", "wanted"), [(0, [0.6, 0.6]), (1, [0.3, 0.6, 0.6]), (2, [0.2, 0.4, 0.6, 0.6])])
def test_no_step_of_a_warm_up_has_a_learning_rate_of_zero(stage: str, warmup: int, wanted: list[float]) -> None:
    cfg = SlimeConfig()
    cfg.run.num_steps, cfg.sft.num_steps, cfg.sft.lr_decay = 9, 9, LrDecay.constant
    cfg.train.optimizer, cfg.sft.lr = {"lr": PEAK}, PEAK
    cfg.train.lr_warmup_steps = cfg.sft.lr_warmup_steps = warmup
    assert rates(schedule_of(cfg, stage), len(wanted)) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize(
    ("decay", "wanted"),
    [(LrDecay.linear, [0.3, 0.6, 0.45, 0.3, 0.15]), (LrDecay.cosine, [0.3, 0.6, 0.512, 0.3, 0.0879])],
)
def test_the_decay_begins_at_the_peak_and_its_last_step_still_learns(decay: LrDecay, wanted: list[float]) -> None:
    schedule = LrSchedule("rl", PEAK, 0.0, warmup_steps=1, decay=decay, decay_steps=5)
    assert rates(schedule, 5) == pytest.approx(wanted, rel=1e-3)


def test_the_decay_ends_with_the_run_unless_told_otherwise() -> None:
    cfg = SlimeConfig()
    cfg.run.num_steps, cfg.train.steps_per_rollout = 20, 4
    assert schedule_of(cfg, "rl").decay_steps == 80
    cfg.algo.advantage, cfg.algo.critic.only_steps = "gae", 5
    assert schedule_of(cfg, "rl").decay_steps == 60, "the policy takes no step while the critic learns alone"
    cfg.algo.advantage = "grpo"
    assert schedule_of(cfg, "rl").decay_steps == 80, "there is no critic"
    cfg.train.epochs_per_rollout = 3
    assert schedule_of(cfg, "rl").decay_steps == 240
    cfg.train.lr_decay_steps = 7
    assert schedule_of(cfg, "rl").decay_steps == 7


def test_a_warm_up_may_take_all_steps_where_nothing_decays() -> None:
    """Megatron-core wants the decay to end after the warm-up; a config where something decays is refused before."""
    cfg = SlimeConfig()
    cfg.sft.num_steps, cfg.sft.lr_warmup_steps, cfg.sft.lr = 5, 5, PEAK
    cfg.sft.lr_decay = LrDecay.constant
    assert rates(schedule_of(cfg, "sft"), 6)[-1] == PEAK
