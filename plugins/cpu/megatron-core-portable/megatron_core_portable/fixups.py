"""Names that megatron-core 0.16 leaves undefined or wrong without Transformer Engine, bound to what works: each fix-up
rebinds one name of a module, once."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from packaging.version import Version

from megatron_core_portable import cpu_adam
from megatron_core_portable.accumulate import add_product
from megatron_core_portable.adam import FusedAdam
from megatron_core_portable.rng import use_cpu_rng


def apply_fixups() -> None:
    """Call once a process, before a model is built. Calling again changes nothing."""
    define_te_general_gemm()
    deny_te_in_mla()
    provide_grouped_gemm()
    provide_fused_adam()
    provide_weight_gradient_sum()
    provide_multi_tensor_functions()
    give_absent_te_a_version()
    order_groups_of_two_precisions()
    cpu_adam.apply_fixups()
    if not torch.cuda.is_available():
        convert_split_sizes_on_cpu()
        use_cpu_rng()


def define_te_general_gemm() -> None:
    """Without Transformer Engine `moe_utils` reads this name and never defines it: every router raises NameError."""
    from megatron.core.transformer.moe import moe_utils

    if not hasattr(moe_utils, "te_general_gemm"):
        moe_utils.te_general_gemm = None


def deny_te_in_mla() -> None:
    """Without Transformer Engine `TELinear` is a mock object, and `isinstance` with it raises TypeError."""
    from megatron.core.transformer import multi_latent_attention

    if not isinstance(multi_latent_attention.TELinear, type):
        multi_latent_attention.HAVE_TE = False


def provide_grouped_gemm() -> None:
    """`GroupedMLP` calls the package grouped_gemm, which has no wheel: torch's grouped matrix product serves."""
    from megatron.core.transformer.moe import grouped_gemm_util

    if grouped_gemm_util.grouped_gemm is None:
        grouped_gemm_util.ops = SimpleNamespace(gmm=grouped_matmul)
        grouped_gemm_util.grouped_gemm = SimpleNamespace(ops=grouped_gemm_util.ops)


def grouped_matmul(
    a: torch.Tensor, b: torch.Tensor, batch_sizes: torch.Tensor, trans_a: bool = False, trans_b: bool = False
) -> torch.Tensor:
    """Row block i of `a` times `b[i]`: [rows, n].

    Args:
        a: [rows, k], the rows of all groups, concatenated.
        b: [groups, k, n], or [groups, n, k] with `trans_b`.
        batch_sizes: [groups] rows of each group.
    """
    assert not trans_a, "GroupedMLP never transposes the rows"
    b = b.transpose(1, 2) if trans_b else b
    if a.is_cuda and a.dtype == torch.bfloat16:
        offsets = torch.cumsum(batch_sizes.to(a.device), 0).to(torch.int32)
        return torch._grouped_mm(a, b, offs=offsets)
    return torch.cat([rows @ b[i] for i, rows in enumerate(torch.split(a, batch_sizes.tolist()))])


def provide_fused_adam() -> None:
    """Without apex the fall-back AdamW trains but its distributed optimizer's checkpoint cannot be loaded."""
    from megatron.core import optimizer
    from megatron.core.optimizer import distrib_optimizer

    if optimizer.USING_PYTORCH_OPTIMIZER:
        optimizer.Adam = distrib_optimizer.Adam = FusedAdam
        optimizer.USING_PYTORCH_OPTIMIZER = False
        distrib_optimizer.HAVE_APEX_OR_TE = distrib_optimizer.USING_APEX_OPTIMIZER = True


def provide_weight_gradient_sum() -> None:
    """`gradient_accumulation_fusion` calls a CUDA extension of apex: cuBLAS, as torch calls it, does the same."""
    from megatron.core.tensor_parallel import layers

    if not layers._grad_accum_fusion_available:
        layers.fused_weight_gradient_mlp_cuda = SimpleNamespace(wgrad_gemm_accum_fp32=_add_weight_gradient)
        layers._grad_accum_fusion_available = True


def _add_weight_gradient(inputs: torch.Tensor, grad_outputs: torch.Tensor, main_grad: torch.Tensor) -> None:
    """main_grad [out, in] += grad_outputs.T [out, tokens] @ inputs [tokens, in]."""
    add_product(main_grad, grad_outputs.t(), inputs)


def provide_multi_tensor_functions() -> None:
    """Without apex the norm of the gradients is asked of each tensor in turn, for which the host waits, and clipping
    copies each: torch's functions of many tensors do neither."""
    from megatron.core import utils
    from megatron.core.optimizer import clip_grads

    if clip_grads.l2_norm_impl is utils.local_multi_tensor_l2_norm:
        clip_grads.l2_norm_impl, clip_grads.multi_tensor_scale_impl = _norm, _scale


def _norm(_: int, __: torch.Tensor, tensor_lists: Sequence[Sequence[torch.Tensor]], ___: bool) -> tuple[Any, None]:
    """[1], of all tensors together."""
    norms = torch._foreach_norm([tensor for tensors in tensor_lists for tensor in tensors])
    return torch.linalg.vector_norm(torch.stack(norms)).reshape(1), None


def _scale(_: int, __: torch.Tensor, tensor_lists: Sequence[list[torch.Tensor]], factor: float) -> None:
    """The second list becomes the first times `factor`."""
    sources, targets = tensor_lists
    if any(source is not target for source, target in zip(sources, targets, strict=True)):
        torch._foreach_copy_(targets, sources)
    torch._foreach_mul_(targets, factor)


def order_groups_of_two_precisions() -> None:
    """Of a group with parameters in fp32 and in bf16, the distributed optimizer saves one state as another's: its
    optimizer takes the fp32 ones first, the table by which it saves does not."""
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer

    build = DistributedOptimizer._build_optimizer_group_ranges.__func__
    if build.__module__ == __name__:
        return

    def fp32_first(cls: type, param_groups: Any, gbuf_ranges: Any) -> tuple[dict[Any, tuple[int, int]], list[Any]]:
        places, groups = build(cls, param_groups, gbuf_ranges)
        for number, group in enumerate(groups):
            group["params"].sort(key=lambda parameter: parameter.dtype != torch.float32)
            places |= {parameter: (number, place) for place, parameter in enumerate(group["params"])}
        return places, groups

    DistributedOptimizer._build_optimizer_group_ranges = classmethod(fp32_first)


def give_absent_te_a_version() -> None:
    """Asked whether Transformer Engine is new enough, Megatron-core compares None where there is none: TypeError."""
    from megatron.core import utils

    if utils.get_te_version() is None:
        utils._te_version = Version("0")


def convert_split_sizes_on_cpu() -> None:
    """The all-to-all split sizes become numpy only when they lie on a GPU; on a CPU they stay tensors, which
    torch's all-to-all refuses."""
    from megatron.core.transformer.moe import token_dispatcher

    token_dispatcher.maybe_move_tensor_to_cpu = _as_host


def _as_host(tensor: Any, as_numpy: bool = False, record_stream: bool = False) -> Any:
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor
