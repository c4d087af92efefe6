"""The tables of where a training step's time goes, of kernels whose times are known."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

FILE = Path(__file__).parents[2] / "benchmarks/kernels.py"


@pytest.fixture(scope="module")
def program() -> dict[str, Any]:
    return runpy.run_path(str(FILE))


def test_an_exchange_behind_products_costs_what_sticks_out(program: dict[str, Any]) -> None:
    kernel = program["Kernel"]
    kernels = [
        kernel("nvjet_tst_128x256_64x4", 0.0, 4000.0),
        kernel("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 3000.0, 6000.0),
        kernel("nvjet_tst_128x256_64x4", 8000.0, 9000.0),
    ]
    table = program["by_kind"](kernels, wall_ms=12.5)
    assert table.splitlines()[2:] == [
        "| other products | 5.0 | 4.0 | 32.0% | 2 |",
        "| exchange of tokens | 3.0 | 2.0 | 16.0% | 1 |",
        "| nothing runs | 5.5 | 5.5 | 44.0% | |",
        "| step | 12.5 | | | 3 |",
    ]
    assert "5.00  62.5%      2  nvjet_tst_128x256_64x4" in program["longest"](kernels)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "sums over ranks"),
        ("ncclDevKernel_AllGather_RING_LL", "gathers of token counts and weights, and waiting for them"),
        ("_turn_kernel", "kernels of Triton"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<GroupProblemShape>>", "grouped products"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<...>", "joining and splitting"),
        ("void at::native::index_elementwise_kernel<128, 4>", "permutation"),
        ("Memcpy DtoD (Device -> Device)", "copies and casts"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>", None),
    ],
)
def test_kinds_by_name(name: str, kind: str | None, program: dict[str, Any]) -> None:
    assert program["kind_of"](name) == (kind or program["OTHER"])
