"""A norm behind a linear layer."""

from __future__ import annotations

from typing import Any

from megatron.core.tensor_parallel.layers import RowParallelLinear
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor

from slime_megatron.train.model.linear import sharded


def output_projection(*, post_norm: bool, norm: type) -> type | ModuleSpec:
    """The last linear layer of attention or MLP; with `norm` on its output where `post_norm`."""
    if not post_norm:
        return RowParallelLinear
    return ModuleSpec(module=PostNormRowParallelLinear, params={"norm": norm})


class PostNormRowParallelLinear(RowParallelLinear):  # type: ignore[misc]
    """Row-parallel linear with a norm on its output: the second half of a sandwich norm."""

    def __init__(
        self, input_size: int, output_size: int, *, config: TransformerConfig, norm: type, **kwargs: Any
    ) -> None:
        super().__init__(input_size, output_size, config=config, **kwargs)
        self.post_layernorm = norm(config, output_size, config.layernorm_epsilon)

    def forward(self, input_: Tensor) -> tuple[Tensor, None]:
        """[tokens, batch, input_size / tp] -> [tokens (/ tp under sequence parallelism), batch, output_size]."""
        output, bias = super().forward(input_)
        assert bias is None, "a bias would have to be added before the norm"
        return self.post_layernorm(output), None

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As upstream, with the norm's parameters as replicated tensors."""
        linear: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        norm = dict(self.post_layernorm.named_parameters())
        return linear | sharded(norm, self.tp_group, f"{prefix}post_layernorm.", sharded_offsets, metadata)
