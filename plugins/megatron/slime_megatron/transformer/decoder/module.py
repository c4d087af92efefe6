"""Whole layers, and the list of layers of a pipeline stage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import (
    TransformerLayer,
    TransformerLayerSubmodules,
    get_transformer_layer_offset,
)
from torch import Tensor
from torch.distributed import ProcessGroup

from slime_megatron.train.model.linear import RMSNorm
from slime_megatron.train.model.packed.sequences import PackedSequences


@runtime_checkable
class ReadsPack(Protocol):
    """An MLP that is told of the pack before each of its passes."""

    def begin_pass(self, packed: PackedSequences, shard: ProcessGroup | None) -> None:
        """The pass of `packed` begins.

        Args:
            shard: of sequence parallelism; None: this rank has all tokens of the pack.
        """


class PackedTransformerLayer(TransformerLayer):  # type: ignore[misc]
    """Megatron-core's layer, whose MLP is told of the pack, and which of its tokens are padding.

    Upstream hands that down from the first pipeline stage alone, and never to a layer behind the last.
    """

    def forward(
        self, *args: Any, packed_seq_params: PackedSequences, padding_mask: None = None, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """As upstream."""
        shard = self.pg_collection.tp if self.config.sequence_parallel else None
        padding = packed_seq_params.padding_of(shard)
        if isinstance(self.mlp, ReadsPack):
            self.mlp.begin_pass(packed_seq_params, shard)
        result: tuple[Tensor, Tensor | None] = super().forward(
            *args, packed_seq_params=packed_seq_params, padding_mask=padding, **kwargs
        )
        return result


def transformer_layer(
    config: TransformerConfig, *, attention: ModuleSpec, mlp: ModuleSpec, pre_norm: bool = True, norm: type = RMSNorm
) -> ModuleSpec:
    """x + attention(norm(x)), then x + mlp(norm(x)).

    Args:
        pre_norm: False for x + attention(x) and x + mlp(x): then the two bring norms of their own (`post_norm=True`).
        norm: module made with config, hidden size and epsilon, as `RMSNorm` is; its parameters carry the same mark.
    """
    before = norm if pre_norm else IdentityOp
    submodules = TransformerLayerSubmodules(
        input_layernorm=before,
        self_attention=attention,
        self_attn_bda=get_bias_dropout_add,
        pre_mlp_layernorm=before,
        mlp=mlp,
        mlp_bda=get_bias_dropout_add,
    )
    return ModuleSpec(module=PackedTransformerLayer, submodules=submodules)


def decoder_block(
    config: TransformerConfig, vp_stage: int | None, layer: Callable[[bool], ModuleSpec], *, norm: type = RMSNorm
) -> TransformerBlockSubmodules:
    """The layers of this pipeline stage (and virtual stage).

    Args:
        layer: from "is a mixture-of-experts layer" to the layer's spec.
        norm: behind the last layer, see `transformer_layer`.
    """
    specs = {is_moe: layer(is_moe) for is_moe in set(_moe_pattern(config))}
    start = get_transformer_layer_offset(config, vp_stage=vp_stage)
    end = start + get_num_layers_to_build(config, vp_stage=vp_stage)
    stage = [specs[is_moe] for is_moe in _moe_pattern(config)[start:end]]
    return TransformerBlockSubmodules(layer_specs=stage, layer_norm=norm)


def _moe_pattern(config: TransformerConfig) -> list[bool]:
    """For every layer of the model: is it a mixture of experts?"""
    if config.num_moe_experts is None:
        return [False] * config.num_layers
    if isinstance(config.moe_layer_freq, int):
        return [index % config.moe_layer_freq == 0 for index in range(config.num_layers)]
    return [bool(is_moe) for is_moe in config.moe_layer_freq]
