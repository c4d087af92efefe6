"""The stages of a run, by its config: which there are, what they need, and how many passes a step takes."""

from __future__ import annotations

from typing import Any

import pytest

from slime.algo.stages import objective_of, run_stages
from slime.config.schema import AlgoConfig, SlimeConfig
from slime.errors import SlimeError
from slime.objective import Metrics, Source, TrainsOn
from slime.types import RL, SFT


def config(num_sft_steps: int = 0, steps_per_rollout: int = 1, epochs: int = 1, **algo: Any) -> SlimeConfig:
    cfg = SlimeConfig(algo=AlgoConfig(**algo))
    cfg.train.epochs_per_rollout = epochs
    cfg.run.num_steps, cfg.sft.num_steps, cfg.train.steps_per_rollout = 7, num_sft_steps, steps_per_rollout
    return cfg


@pytest.mark.parametrize(
    ("cfg", "wanted"),
    [
        (config(), [(RL, 7, TrainsOn.rollouts)]),
        (config(3), [(SFT, 3, TrainsOn.demonstrations), (RL, 7, TrainsOn.rollouts)]),
        (config(3, name="sft"), [(SFT, 3, TrainsOn.demonstrations)]),
        (config(0, name="sft"), [(SFT, 0, TrainsOn.demonstrations)]),  # refused, but not here
    ],
)
def test_stages_come_in_order(cfg: SlimeConfig, wanted: list[Any]) -> None:
    stages = run_stages(cfg)
    assert [(stage.name, stage.num_steps, stage.objective.trains_on) for stage in stages] == wanted
    assert stages.reinforces == (wanted[-1][0] == RL)


@pytest.mark.parametrize(
    ("cfg", "wanted"),
    [
        (config(), []),
        (config(steps_per_rollout=2), [Source.policy]),
        (config(epochs=2), [Source.policy]),
        (config(steps_per_rollout=2, rollout_logprobs_as_old=True), []),
        (config(kl_coef=0.0), [Source.reference]),
        (config(sequence_bound=2.0, rejected_in_mean=False), [Source.policy]),  # what it rejects is to be known before
        (config(steps_per_rollout=2, kl_coef=0.1), [Source.policy, Source.reference]),
    ],
)
def test_passes_before_the_first_optimizer_step(cfg: SlimeConfig, wanted: list[Source]) -> None:
    stages = run_stages(cfg)
    assert stages[RL].passes(cfg.train.optimizer_steps) == wanted
    assert stages.num_passes == len(wanted)
    assert stages.needs(Source.reference) == (cfg.algo.kl_coef is not None)


def test_a_supervised_stage_takes_no_pass_and_no_reference() -> None:
    stage = run_stages(config(3, kl_coef=0.1))[SFT]
    assert not stage.passes(1)
    assert not stage.needs(Source.reference)
    assert stage.objective.metrics(()) == Metrics(("loss", "entropy"))


def test_an_objective_gets_the_keys_that_it_has_fields_for() -> None:
    objective: Any = objective_of(AlgoConfig(clip_low=0.05, kl_coef=0.5, normalize_std=False))
    assert (objective.clip_low, objective.kl_coef) == (0.05, 0.5)
    assert not hasattr(objective, "normalize_std")


def test_a_wrong_name_is_refused() -> None:
    with pytest.raises(SlimeError, match="no algo named 'ppo' is installed"):
        objective_of(AlgoConfig(name="ppo"))
