"""Estimated seconds of a publish against those that were measured on H200s, and against a sum by hand."""

from __future__ import annotations

import pytest

from slime.compose.compose import examine
from slime.plan.model import read_model
from slime.plugins import load
from slime_tools.publish.part import Publishing, PublishSeconds


def seconds(*words: str) -> PublishSeconds | None:
    composed = examine(words)
    assert composed.problems == []
    (part,) = (part for part in read_model(composed, load()).parts if isinstance(part, Publishing))
    return part.seconds


@pytest.mark.parametrize(
    ("cluster", "words", "measured"),
    [
        ("h200x4", [], 0.399),
        ("h200x1", ["model.num_layers=12"], 0.132),
        ("h200x2-split", [], 0.073),
        ("h200x4-split", [], 0.091),
    ],
)
def test_inside_a_host_it_is_what_was_measured(cluster: str, words: list[str], measured: float) -> None:
    """`benchmarks/results/publish-h200.md` and `plan-beside-measured.md`, GLM-4-9B."""
    found = seconds("+model=glm4-9b", f"+cluster={cluster}", *words)
    assert found is not None
    assert found.network == 0
    assert found.total == pytest.approx(measured, rel=0.15)


def test_glm5_2_over_hosts() -> None:
    """753 GB over a link of 40 GB/s, and in turn over NVLink; 756 GB through every GPU, and 119,000 names."""
    found = seconds("+model=glm5.2", "+cluster=h100x256")
    assert found is not None
    assert found.network == pytest.approx(753.2 / 40, rel=0.01)
    assert found.copies == pytest.approx(753.2 / 300 + 755.6 / 58, rel=0.01)
    assert found.tensors == pytest.approx(119_000 * 38e-6, rel=0.02)


def test_a_split_cluster_of_several_hosts_sends_through_rank_0() -> None:
    found = seconds("+model=qwen3-235b-a22b", "+cluster=h100x128-split")
    assert found is not None
    assert found.network > found.copies


def test_what_is_not_known_is_not_estimated() -> None:
    assert seconds("+model=glm4-9b", "+cluster=h100x8-split", "weights.transport=disk") is None
    assert seconds("+model=glm4-tiny", "+cluster=local") is None
    assert seconds("+model=glm4-9b", "+cluster=h100x8", "cluster.gpu=null") is None


def test_copies_over_pcie_are_no_faster_than_that() -> None:
    """Two thirds of the 32 GB/s of PCIe 4.0 for gathering and handing over, where NVLink has 300 and 58."""
    nvlink, pcie = (
        seconds("+model=qwen2.5-7b", "+cluster=rtx4090x8", f"cluster.gpu={name}") for name in ("h100", "l4")
    )
    assert nvlink is not None
    assert pcie is not None
    assert pcie.copies / nvlink.copies == pytest.approx(2 / (32 * 2 / 3) / (1 / 300 + 1 / 58), rel=1e-3)
    assert pcie.tensors == nvlink.tensors
