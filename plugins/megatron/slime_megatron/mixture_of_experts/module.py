"""The layers of a mixture of experts."""

from __future__ import annotations

from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import GroupedMLP, SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoESubmodules
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig

from slime_megatron.mixture_of_experts.grouped import GroupedExperts
from slime_megatron.mixture_of_experts.layer import ExpertLayer, PackedMoELayer
from slime_megatron.mixture_of_experts.router import Router
from slime_megatron.transformer import specs
from slime_megatron.transformer.mlp.activation import SwiGlu


def dense_or_moe_layer(config: TransformerConfig, is_moe: bool, *, attention: ModuleSpec) -> ModuleSpec:
    """A pre-norm layer whose MLP is gated and dense, or a mixture of experts."""
    mlp = moe(config) if is_moe else specs.gated_mlp(config)
    return specs.transformer_layer(config, attention=attention, mlp=mlp)


def moe(config: TransformerConfig) -> ModuleSpec:
    """Mixture of experts; with shared experts where `config.moe_shared_expert_intermediate_size` is set."""
    linears = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear, activation_func=SwiGlu)
    # Experts that are cut, and DeepEP, stay Megatron-core's.
    is_ours = config.expert_tensor_parallel_size == 1 and config.moe_token_dispatcher_type != "flex"
    if config.moe_grouped_gemm:
        experts = ModuleSpec(module=GroupedExperts if is_ours else GroupedMLP)
    else:
        experts = ModuleSpec(module=SequentialMLP, submodules=linears)
    shared = ModuleSpec(module=SharedExpertMLP, submodules=linears)
    submodules = MoESubmodules(experts=experts, shared_experts=shared, router=Router)
    return ModuleSpec(module=ExpertLayer if is_ours else PackedMoELayer, submodules=submodules)
