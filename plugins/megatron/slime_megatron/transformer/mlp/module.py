"""Gated MLP."""

from __future__ import annotations

from megatron.core.tensor_parallel.layers import ColumnParallelLinear
from megatron.core.transformer.mlp import MLP, MLPSubmodules
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig

from slime_megatron.train.model.linear import RMSNorm
from slime_megatron.transformer.mlp.activation import SwiGlu
from slime_megatron.transformer.post_norm import output_projection


def gated_mlp(
    config: TransformerConfig, *, post_norm: bool = False, activation: type = SwiGlu, norm: type = RMSNorm
) -> ModuleSpec:
    """Dense gated MLP (Shazeer 2020): `linear_fc1` holds [gate | up].

    Args:
        activation: module from [gate | up] `[..., 2f]` to `[..., f]`, made with the config; another than SwiGLU takes
            effect where the bridge states `use_te_activation_func`.
        norm: of the output where `post_norm`.
    """
    down = output_projection(post_norm=post_norm, norm=norm)
    submodules = MLPSubmodules(linear_fc1=ColumnParallelLinear, linear_fc2=down, activation_func=activation)
    return ModuleSpec(module=MLP, submodules=submodules)
