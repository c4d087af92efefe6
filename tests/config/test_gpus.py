"""The table of GPUs against their data sheets, and what `cluster.gpu` and `cluster.gpu_row` take."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from slime.compose.compose import examine
from slime.config.gpus import Gpu, gpu_of, table
from slime.topology.links import Medium, medium_between
from slime.topology.placement import HostDevices

ROOT = Path(__file__).parents[2]
WORDS = ["+model=qwen2.5-0.5b", "+cluster=h100x8"]
SHEETS = {
    "h100": (1979, 3958, 3350, 900),
    "h200": (1979, 3958, 4800, 900),
    "b200": (36_000 / 8, 72_000 / 8, 64_000 / 8, 14_400 / 8),  # of a DGX with eight
    "a100-40": (624, 0, 1555, 600),
    "a100-80": (624, 0, 2039, 600),
    "l40s": (733, 1466, 864, 0),
    "l4": (242, 485, 300, 0),
    "rtx4090": (330.4, 660.6, 1008, 0),
    "rtx5090": (419, 838, 1792, 0),
}
"""As data sheets print them: bf16 and FP8 with sparsity in TFLOP/s, memory, and NVLink both ways together in GB/s."""


@pytest.mark.parametrize("name", SHEETS)
def test_a_row_has_half_of_what_sparsity_and_both_ways_would_be(name: str) -> None:
    gpu, (bf16, fp8, memory, nvlink) = Gpu(**table()[name]), SHEETS[name]
    # Data sheets round: that of the L40S has 362.05 dense beside 733.
    assert (2 * gpu.bf16_tflops, 2 * gpu.fp8_tflops) == pytest.approx((bf16, fp8), rel=0.02)
    assert (gpu.memory_gb_s, 2 * gpu.nvlink_gb_s) == (memory, nvlink)


def test_every_row_has_a_source_and_a_line_in_the_docs() -> None:
    page = (ROOT / "docs/gpus.md").read_text()
    shown = ("memory_mib", "multiprocessors", "bf16_tflops", "fp8_tflops", "memory_gb_s", "nvlink_gb_s", "host_gb_s")
    for name, row in table().items():
        gpu = Gpu(**row)
        assert gpu.source
        assert gpu.device_name
        assert (gpu.fp8_tflops > 0) == (gpu.capability >= 8.9)
        cells = [f"{value:,}" if (value := getattr(gpu, field)) else "-" for field in shown]
        assert f"| {name} | {' | '.join(cells)} | {gpu.capability} |" in page


def test_every_shipped_cluster_of_gpus_names_one_with_its_memory() -> None:
    names = [file.stem for file in (ROOT / "conf/cluster").glob("*.yaml") if re.match("h[12]00|rtx", file.stem)]
    assert len(names) > 15
    for name in names:
        cluster = examine([WORDS[0], f"+cluster={name}"]).cfg.cluster
        gpu = gpu_of(cluster)
        assert gpu is not None
        assert name.startswith(str(cluster.gpu))
        assert cluster.device_memory_mb == gpu.memory_mib


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["cluster.gpu=rtx-4090"], "cluster.gpu: no GPU named 'rtx-4090' is known. Did you mean 'rtx4090'?"),
        (["cluster.gpu=tpu"], "Choose one of: a100-40, a100-80, a800, b200"),
        (["cluster.gpu_row.memory_gbs=2000"], "Did you mean 'memory_gb_s'?"),
        (["cluster.gpu_row.memory_gb_s=fast"], "cluster.gpu_row.memory_gb_s: must be a number of at least 0, got fast"),
        (["cluster.gpu=mine", "cluster.gpu_row.bf16_tflops=100"], "cluster.gpu_row: lacks memory_mib, multiprocessors"),
    ],
)
def test_a_gpu_that_is_not_known_is_refused(words: list[str], says: str) -> None:
    [problem] = examine([*WORDS, *words]).problems
    assert says in str(problem)


def test_numbers_of_ones_own_stand_before_those_of_the_row() -> None:
    composed = examine([*WORDS, "cluster.gpu=h20", "cluster.gpu_row.memory_mib=81559"])
    assert (composed.problems, composed.warnings) == ([], [])
    gpu = gpu_of(composed.cfg.cluster)
    assert gpu == Gpu(**{**table()["h20"], "memory_mib": 81559})


def test_a_plan_without_a_gpu_says_what_it_does_not_know() -> None:
    composed = examine([*WORDS, "cluster.gpu=null"])
    assert composed.problems == []
    [warning] = composed.warnings
    assert str(warning).startswith("cluster.gpu: is not set: no seconds are estimated")
    assert examine(WORDS).warnings == []
    assert gpu_of(examine([WORDS[0], "+cluster=local"]).cfg.cluster) is None, "CPUs are none"


def test_a_memory_that_is_another_gpus_is_told() -> None:
    [warning] = examine([*WORDS, "cluster.device_memory_mb=143771"]).warnings
    assert "is 143,771, but h100 has 81,559: seconds would be another GPU's" in str(warning)


def test_gpus_without_nvlink_are_reached_over_pcie() -> None:
    here, beside = (HostDevices(0, range(number, number + 1)) for number in (0, 1))
    for name, medium in (("h100", Medium.nvlink), ("rtx4090", Medium.pcie), ("null", Medium.pcie)):
        cluster = examine([*WORDS, f"cluster.gpu={name}"]).cfg.cluster
        assert medium_between(cluster, here, beside) is medium


def test_deepep_needs_nvlink() -> None:
    flex = ["train.megatron.moe_token_dispatcher_type=flex", "train.megatron.moe_flex_dispatcher_backend=deepep"]
    words = ["+model=glm4.7-flash", "+cluster=h100x8", *flex]
    assert not [problem for problem in examine(words).problems if "NVLink" in problem.what]
    found = [problem.what for problem in examine([*words, "cluster.gpu=l40s"]).problems]
    assert "is flex, whose DeepEP needs GPUs with NVLink" in found
