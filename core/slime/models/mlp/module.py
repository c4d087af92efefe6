"""Gated MLP."""

from __future__ import annotations

from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig

from slime.models.linear import PostNormRowParallelLinear
from slime.models.mlp.activation import SwiGlu


def gated_mlp(config: TransformerConfig, *, post_norm: bool = False) -> ModuleSpec:
    """Dense gated MLP (Shazeer 2020): `linear_fc1` holds [gate | up]."""
    down = PostNormRowParallelLinear if post_norm else RowParallelLinear
    submodules = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=down, activation_func=SwiGlu)
    return ModuleSpec(module=MLP, submodules=submodules)
