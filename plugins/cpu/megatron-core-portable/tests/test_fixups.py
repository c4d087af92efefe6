"""Each fix-up's defect is still there in the installed megatron-core: a test that fails here says a fix-up can go.

The defects are looked at in a process where nothing is fixed.
"""

import subprocess
import sys

import pytest
import torch

from megatron_core_portable.fixups import _norm, _scale, grouped_matmul

needs_cpu = pytest.mark.skipif(torch.cuda.is_available(), reason="the defect is of machines without CUDA")

ROUTER = """
import torch
from megatron.core.transformer.moe.moe_utils import router_gating_linear
try:
    router_gating_linear(torch.randn(2, 3), torch.randn(4, 3), None, torch.float32)
except NameError as error:
    print("defect:", error)
"""
MLA = """
from megatron.core.transformer import multi_latent_attention as mla
print("defect:", mla.HAVE_TE and not isinstance(mla.TELinear, type))
"""
GROUPED_GEMM = """
from megatron.core.transformer.moe import grouped_gemm_util
print("defect:", grouped_gemm_util.ops is None)
"""
ADAM = """
from megatron.core import optimizer
from megatron.core.optimizer import distrib_optimizer
print("defect:", optimizer.USING_PYTORCH_OPTIMIZER and not distrib_optimizer.HAVE_APEX_OR_TE)
"""
MULTI_TENSOR = """
from megatron.core import utils
from megatron.core.optimizer import clip_grads
print("defect:", clip_grads.l2_norm_impl is utils.local_multi_tensor_l2_norm)
"""
WEIGHT_GRADIENTS = """
from megatron.core.tensor_parallel import layers
print("defect:", not layers._grad_accum_fusion_available)
"""
TE_VERSION = """
from megatron.core.utils import is_te_min_version
try:
    is_te_min_version("2.1.0")
except TypeError as error:
    print("defect:", error)
"""
TWO_PRECISIONS = """
import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
parameters = [torch.nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in (torch.bfloat16, torch.float32)]
buffer = {"dtype": [{"param_map": dict.fromkeys(parameters)}]}
places, _ = DistributedOptimizer._build_optimizer_group_ranges([{"params": parameters}], [buffer])
print("defect:", places[parameters[0]] == (0, 0))
"""
FP32_SHARDS = """
from types import SimpleNamespace
import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer, Range
from megatron_core_portable import cpu_stands_in_for_cuda
head = torch.nn.Parameter(torch.ones(2))
buffers = [{"fp32": [{"param_map": {head: {"param": Range(0, 2)}}}]}]
groups = [{"params": [head], "orig_group": {"params": [head]}}]
config = SimpleNamespace(use_precision_aware_optimizer_no_fp8_or_ds_fp8=True)
with cpu_stands_in_for_cuda():
    DistributedOptimizer._build_model_and_main_param_groups(buffers, {head: (0, "fp32", 0)}, groups, config)
print("defect:", not groups[0]["orig_group"]["params"][0].is_leaf)
"""
CPU_ADAM = """
import torch
from megatron.core.optimizer.cpu_offloading.hybrid_optimizer import HybridDeviceOptimizer
from megatron_core_portable import cpu_stands_in_for_cuda
head = torch.nn.Parameter(torch.ones(2))
head.grad = torch.ones(2)
kinds = {"cpu_optimizer_cls": torch.optim.AdamW, "gpu_optimizer_cls": torch.optim.AdamW}
with cpu_stands_in_for_cuda():
    adam = HybridDeviceOptimizer([head], 1.0, **kinds, param_update_in_fp32=True)
"""
FP32_MASTERS = (
    CPU_ADAM
    + """
adam.state[head] = {"master_param": torch.ones(2)}
try:
    adam._update_fp32_params_by_new_state()
except KeyError as error:
    print("defect:", type(error).__name__)
"""
)
COPIES_ON_CPU = (
    CPU_ADAM
    + """
try:
    with cpu_stands_in_for_cuda():
        adam.step()
except KeyError as error:
    print("defect:", type(error).__name__)
"""
)
SPLIT_SIZES = """
import numpy, torch
from megatron.core.transformer.moe.token_dispatcher import maybe_move_tensor_to_cpu
print("defect:", not isinstance(maybe_move_tensor_to_cpu(torch.ones(2), as_numpy=True), numpy.ndarray))
"""
RNG = """
from megatron.core.tensor_parallel import random
tracker = random.CudaRNGStatesTracker()
try:
    tracker.add("name", 1)
except (AssertionError, RuntimeError) as error:
    print("defect:", error)
"""
CURRENT_DEVICE = """
import torch
try:
    torch.cuda.current_device()
except (AssertionError, RuntimeError) as error:
    print("defect:", error)
"""
DEFECTS = {
    "te_general_gemm": (ROUTER, "te_general_gemm"),
    "mla": (MLA, "True"),
    "grouped_gemm": (GROUPED_GEMM, "True"),
    "adam": (ADAM, "True"),
    "multi_tensor": (MULTI_TENSOR, "True"),
    "weight_gradients": (WEIGHT_GRADIENTS, "True"),
    "te_version": (TE_VERSION, "NoneType"),
    "two_precisions": (TWO_PRECISIONS, "True"),
    "fp32_shards": (FP32_SHARDS, "True"),
    "fp32_masters": (FP32_MASTERS, "KeyError"),
}
DEFECTS_ON_CPU = {
    "split_sizes": (SPLIT_SIZES, "True"),
    "rng": (RNG, "CUDA"),
    "current_device": (CURRENT_DEVICE, "CUDA"),
    "copies": (COPIES_ON_CPU, "KeyError"),
}


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """What each snippet says; all in one process, because importing Megatron-core takes seconds."""
    snippets = DEFECTS | DEFECTS_ON_CPU
    code = "\n".join(f"print('{name}', end=' ')\n{snippet}" for name, (snippet, _) in snippets.items())
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True)
    lines = [line.partition(" defect: ") for line in done.stdout.splitlines() if " defect: " in line]
    return {name: message for name, _, message in lines}


@pytest.mark.parametrize("name", DEFECTS)
def test_defect_is_still_there(name: str, printed: dict[str, str]) -> None:
    assert DEFECTS[name][1] in printed[name]


@needs_cpu
@pytest.mark.parametrize("name", DEFECTS_ON_CPU)
def test_defect_is_still_there_on_cpu(name: str, printed: dict[str, str]) -> None:
    assert DEFECTS_ON_CPU[name][1] in printed[name]


@pytest.mark.parametrize("trans_b", [False, True])
def test_grouped_matmul_with_an_empty_group(trans_b: bool) -> None:
    rows, weights, sizes = torch.randn(10, 3), torch.randn(3, 3, 5), torch.tensor([6, 0, 4])
    wanted = torch.cat([rows[:6] @ weights[0], rows[6:] @ weights[2]])
    given = weights.transpose(1, 2) if trans_b else weights
    torch.testing.assert_close(grouped_matmul(rows, given, sizes, trans_b=trans_b), wanted)


def test_functions_of_many_tensors_are_upstreams() -> None:
    """The norm to rounding: upstream adds the squares of the norms in another order."""
    from megatron.core.utils import local_multi_tensor_scale

    tensors = [torch.randn(size, generator=torch.Generator().manual_seed(size)) for size in (1, 7, 4000)]
    found, nothing = _norm(0, torch.zeros(1), [tensors[:1], tensors[1:]], False)
    assert (found.shape, nothing) == ((1,), None)
    torch.testing.assert_close(found[0].double(), torch.cat(tensors).double().norm(), rtol=1e-6, atol=0)
    wanted, scaled, copied = ([tensor.clone() for tensor in tensors] for _ in range(3))
    local_multi_tensor_scale(0, None, [wanted, wanted], 0.3)
    _scale(0, torch.zeros(1), [scaled, scaled], 0.3)
    _scale(0, torch.zeros(1), [tensors, copied], 0.3)
    for want, *got in zip(wanted, scaled, copied, strict=True):
        assert all(torch.equal(each, want) for each in got)
