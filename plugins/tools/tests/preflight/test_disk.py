"""Bytes of downloads and of what a run writes, against published and measured ones."""

from __future__ import annotations

import pytest

from plugins.tools.tests.memory.test_trainer import plan_of
from slime.compose.compose import examine
from slime.plan.document import document
from slime.plugins import load
from slime_tools.preflight.disk import Disk, download_bytes, written

ON_THE_HUB = [
    ("qwen2.5-7b", "h100x8", 15_231_233_024),
    ("llama3.2-1b", "rtx4090x1", 2_471_645_608),
    ("deepseek-r1", "h100x128", 688_586_727_753),
]
"""Model, a cluster for it, and the size of its safetensors as the hub's index states it."""


@pytest.mark.parametrize(("model", "cluster", "size"), ON_THE_HUB)
def test_a_download_is_as_large_as_the_hub_says(model: str, cluster: str, size: int) -> None:
    plan = plan_of(f"+model={model}", f"+cluster={cluster}")
    found = download_bytes(plan.weights, plan.cfg.model)
    assert found == pytest.approx(size, rel=0.03)


def test_checkpoints_are_counted_over_the_run() -> None:
    """Two are kept, and a third one is written before the first goes."""
    words = ["+model=glm4-9b", "+cluster=h100x8"]
    its = written(plan_of(*words))
    assert (its.num_checkpoints, its.samples) == (3, 200e6)
    assert its.checkpoint == pytest.approx(9.4e9 * 14, rel=0.02)
    assert its.export == pytest.approx(9.4e9 * 2, rel=0.02)
    assert written(plan_of(*words, "run.num_steps=20")).num_checkpoints == 1
    assert written(plan_of(*words, "train.checkpoint.keep=9")).num_checkpoints == 10
    none = written(plan_of(*words, "train.checkpoint.interval=null", "train.checkpoint.keep=2"))
    assert (none.num_checkpoints, none.total) == (0, none.export + none.samples)


def test_a_model_that_is_here_is_no_download() -> None:
    assert Disk(plan_of("+model=glm4-9b", "+cluster=h100x8")).download > 0
    disk = document(examine(["+model=glm4-tiny", "+cluster=local"]), load())["disk"]
    assert (disk["download"], disk["num_checkpoints"]) == (0, 3)
