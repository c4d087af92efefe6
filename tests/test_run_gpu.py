"""The laptop run on GPUs, shortened: nothing changes but the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.running import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GAP = 0.02
"""Nats a token between engine and trainer in bf16; seen are 0.004."""

SMALL: dict[str, Any] = {"rollout.sglang.mem_fraction_static": 0.3, "+rollout.sglang.cuda_graph_max_bs_decode": 32}
CLUSTERS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "one": (1, "h200x1", {}),
    "two": (2, "h200x2", {}),
    "split": (2, "h200x2-split", {}),
    "tp2": (
        2,
        "h200x2",
        {"+train.megatron.tensor_model_parallel_size": 2, "+rollout.sglang.tp_size": 2},
    ),
    "pp2": (2, "h200x2", {"+train.megatron.pipeline_model_parallel_size": 2}),
    "cp2": (2, "h200x2", {"+train.megatron.context_parallel_size": 2}),
    "four": (4, "h200x4", {"+train.megatron.tensor_model_parallel_size": 2}),
}


@pytest.mark.parametrize(
    ("cluster", "settings"),
    [pytest.param(*rest, marks=pytest.mark.gpu(need), id=name) for name, (need, *rest) in CLUSTERS.items()],
)
def test_run(cluster: str, settings: dict[str, Any], tmp_path: Path) -> None:
    run = Run(tmp_path, cluster=cluster, settings={**SMALL, **settings}, silence_s=300).start().succeed()
    steps = [row for row in run.rows("rl") if row.get("train/loss") is not None]
    assert [row["step"] for row in steps] == [1, 2, 3, 4]
    assert all(row["train/logprob_diff_mean"] < GAP for row in steps)
    assert (run.path / "export/model.safetensors").exists()


DRAFTING: dict[str, Any] = {
    "sft.num_steps": 200,
    "sft.lr_warmup_steps": 20,
    "train.checkpoint.interval": 100,
    "+rollout.sglang.speculative_algorithm": "EAGLE",
    "+rollout.sglang.speculative_num_steps": 1,
    "+rollout.sglang.speculative_eagle_topk": 1,
    "+rollout.sglang.speculative_num_draft_tokens": 2,
}


@pytest.mark.gpu
def test_run_that_drafts(tmp_path: Path) -> None:
    """Engines draft with the model's own prediction layer, which every publish renews."""
    run = Run(tmp_path, model="glm4-moe-tiny", cluster="h200x1", settings={**SMALL, **DRAFTING}, silence_s=300)
    steps = [row for row in run.start().succeed().rows("rl") if row.get("train/loss") is not None]
    assert all(row["train/logprob_diff_mean"] < GAP for row in steps)
    # A layer that is not the policy's, or a random one, guesses one token of 128.
    assert all(row["rollout/draft_accept_rate"] > 0.2 for row in steps)
