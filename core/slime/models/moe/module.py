"""Mixture of experts."""

from __future__ import annotations

from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLPSubmodules
from megatron.core.transformer.moe.experts import GroupedMLP, SequentialMLP
from megatron.core.transformer.moe.moe_layer import MoELayer, MoESubmodules
from megatron.core.transformer.moe.shared_experts import SharedExpertMLP
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig

from slime.models.mlp.activation import SwiGlu
from slime.models.moe.router import Router


def moe(config: TransformerConfig) -> ModuleSpec:
    """Mixture of experts; with shared experts where `config.moe_shared_expert_intermediate_size` is set."""
    linears = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=RowParallelLinear, activation_func=SwiGlu)
    if config.moe_grouped_gemm:
        experts = ModuleSpec(module=GroupedMLP)
    else:
        experts = ModuleSpec(module=SequentialMLP, submodules=linears)
    shared = ModuleSpec(module=SharedExpertMLP, submodules=linears)
    submodules = MoESubmodules(experts=experts, shared_experts=shared, router=Router)
    return ModuleSpec(module=MoELayer, submodules=submodules)
