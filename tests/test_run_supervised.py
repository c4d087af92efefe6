"""Whole runs without reinforcement learning."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.running import HELD_OUT, Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def test_supervision_alone_needs_no_engine(tmp_path: Path) -> None:
    """Over an interleaved pipeline, which takes micro-batches in pairs only: here one would hold all rows."""
    settings = {
        "algo": "sft",
        "eval.path": "null",
        "sft.eval_path": "${sft.path}",
        "train.megatron.pipeline_model_parallel_size": 2,
        "train.megatron.virtual_pipeline_model_parallel_size": 2,
    }
    shortened = {"sft.num_steps": 3, "sft.lr_warmup_steps": 1, "sft.batch_size": 8}
    run = Run(tmp_path, cluster="local2", settings=settings, shortened=shortened).start().succeed()
    losses = [row["train/loss"] for row in run.rows("sft") if "train/loss" in row]
    assert len(losses) == 3
    knows_nothing = math.log(128)  # of every token of the vocabulary alike
    assert losses[0] > knows_nothing
    assert losses[-1] < knows_nothing - 0.5
    measured = {row["step"]: row["eval/loss"] for row in run.rows("sft") if "eval/loss" in row}
    assert list(measured) == [0, 3]
    assert measured[0] > knows_nothing > measured[3] + 0.5
    logs = {log.name for log in (run.path / "logs").iterdir()}
    assert "trainer-1.log" in logs
    assert not {log for log in logs if log.startswith(("engine", "reward", "router"))}
    assert (run.path / "export/model.safetensors").exists()


def test_a_supervised_run_is_scored_before_and_after(tmp_path: Path) -> None:
    shortened = {"sft.num_steps": 2, "sft.lr_warmup_steps": 1, "sft.batch_size": 8}
    drawn = {"eval.samples_per_prompt": 2, "eval.sampling.temperature": 0.5}
    settings = {"algo": "sft", "train.checkpoint.interval": 1, "eval.path": HELD_OUT, **drawn}
    run = Run(tmp_path, settings=settings, shortened=shortened, forked=True).start().succeed()
    before, first, last = run.rows("sft")
    assert [row["step"] for row in (before, first, last)] == [0, 1, 2]
    for row in (before, last):
        assert {"eval/reward_mean", "eval/pass_at_2"} <= row.keys()
    assert "eval/reward_mean" not in first
    assert "seconds/checkpoint" in last
    assert {path.name for path in (run.path / "samples").iterdir()} == {"eval-000000.jsonl", "eval-000002.jsonl"}
