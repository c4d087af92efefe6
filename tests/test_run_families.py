"""A whole run of a model family whose parts no other run has, shortened to the seconds that its start takes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.running import NO_CHECKPOINTS, Run

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


def test_prediction_layer_of_a_family_that_transformers_lacks(tmp_path: Path) -> None:
    """The layer learns along, and what is exported is a model again."""
    from slime_plugin_mimo import hf

    run = Run(tmp_path, model="mimo-tiny", shortened=SHORT).start().succeed()
    steps = [row for row in run.rows("rl") if "train/loss" in row]
    assert [row["step"] for row in steps] == [1, 2]
    assert all(row["train/logprob_diff_max"] < 1e-4 for row in steps)
    hf.register()
    from transformers import AutoModelForCausalLM

    _, loading = AutoModelForCausalLM.from_pretrained(run.path / "export", output_loading_info=True)
    assert not any(loading.values()), "missing, unexpected or misshapen tensors"
