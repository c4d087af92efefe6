"""Whole runs of model families whose parts no other run has, shortened to the seconds that a start takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import NO_CHECKPOINTS, SPREAD, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
SHORT = {
    "run.num_steps": 2,
    "sft.num_steps": 2,
    "sft.lr_warmup_steps": 1,
    "eval.path": "null",
    **NO_CHECKPOINTS,
    "rollout.prompts_per_step": 4,
    "rollout.samples_per_prompt": 4,
    "algo.entropy_coef": 0.01,  # an untrained model earns nothing; this moves it
}


def test_latent_attention_and_grouped_experts(tmp_path: Path) -> None:
    """Engine and trainer agree, also on weights that were trained and published. The engine's two ranks share requests
    and experts, of which two lie on both."""
    settings = {**SPREAD, "+rollout.sglang.ep_num_redundant_experts": 2, "cluster.devices_per_node": 2}
    run = Run(tmp_path, model="deepseek-v3-tiny", settings=settings, shortened=SHORT).start().succeed()
    assert _steps(run) == [1, 2]


def test_prediction_layer_of_a_family_that_transformers_lacks(tmp_path: Path) -> None:
    """The layer learns along, and what is exported is a model again."""
    from slime_plugin_mimo import hf

    run = Run(tmp_path, model="mimo-tiny", shortened=SHORT).start().succeed()
    assert _steps(run) == [1, 2]
    hf.register()
    from transformers import AutoModelForCausalLM

    _, loading = AutoModelForCausalLM.from_pretrained(run.path / "export", output_loading_info=True)
    assert not any(loading.values()), "missing, unexpected or misshapen tensors"


def _steps(run: Run) -> list[int]:
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert all(row["train/logprob_diff_max"] < 1e-4 for row in steps)
    return [row["step"] for row in steps]
