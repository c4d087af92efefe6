"""Linear layers with adapters: y = (W + scale B A) x, where W is frozen and its gradient is never computed.

Where engines get the sum (`whole_weight`), it is rounded to the precision of W here too, so that both compute with the
same weights. Rounding has no gradient of its own: A and B get those of the sum that is not rounded. The sum is made for
each product, forward and backward, and never kept. Where engines get A and B, there is no sum: y = W x + scale B (A x).

A layer gets another class in place, so that the names of its own parameters, and all code that holds it, stay.

Shape letters: s tokens of a rank's sequence shard, t of its context-parallel rank; r the ranks of a layer's adapters
together. Where sequence parallelism cuts tokens, A (of a layer that divides its output) or B (of one that divides its
input) sees this rank's tokens alone, and carries the mark by which Megatron-core sums its gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    set_tensor_model_parallel_attributes,
)
from megatron.core.tensor_parallel.mappings import (
    gather_from_sequence_parallel_region,
    reduce_scatter_to_sequence_parallel_region,
)
from megatron.core.transformer.mlp import apply_swiglu_sharded_factory
from torch import Tensor
from torch.nn import Parameter, ParameterDict

from slime_megatron.train.model.linear import ReplicatedLinear, sharded, whole_weight


@dataclass(frozen=True)
class Part:
    """An adapter of a layer.

    Attributes:
        name: of its target.
        rows: [n] of this rank's weight that it adds to.
        first: [rank, input] this rank's part of A, in the weight's dtype.
        device: where the weight is.
        halves: the rows are [gate | up] of this rank.
    """

    name: str
    rows: Tensor
    first: Tensor
    device: torch.device
    halves: bool


class Learn(torch.autograd.Function):
    """Its first argument, and the gradients that the two factors would have if their product were added to it:
    `of_factors`, of the gradient and the factors."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, low: Tensor, up: Tensor, of_factors: Callable[..., Any]) -> Tensor:
        ctx.save_for_backward(low, up)
        ctx.of_factors = of_factors
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *ctx.of_factors(gradient, *ctx.saved_tensors), None


def _of_factors(gradient: Tensor, low: Tensor, up: Tensor) -> tuple[Tensor, Tensor]:
    """See `Learn`, of [s, ..., output], [s, ..., r] and [output, r]."""
    return gradient @ up, gradient.flatten(0, -2).t() @ low.flatten(0, -2)


class Lora(torch.nn.Module):
    """What all kinds of layers share.

    Attributes:
        lora_A, lora_B: by target [rank, input] and [output, rank], this rank's parts.
        lora_order: [output] where each row of the weight lies among the rows of all targets and behind them; None: they
            lie in this order.
        lora_beside: the product of weight and adapter are two, as in engines that get adapters.
    """

    weight: Parameter
    lora_A: ParameterDict
    lora_B: ParameterDict
    lora_order: Tensor | None
    lora_scale: float
    lora_halves: bool
    lora_beside: bool

    def down(self) -> Tensor:
        """[r, input] all A, one below the other."""
        return torch.cat([*self.lora_A.values()])

    def up(self) -> Tensor:
        """[output, r] all B, each in the rows of its target and in the columns of its A."""
        blocks = [*self.lora_B.values()]
        whole = torch.block_diag(*blocks) if len(blocks) > 1 else blocks[0]  # type: ignore[no-untyped-call]
        missing = len(self.weight) - len(whole)
        if missing:
            whole = torch.cat([whole, whole.new_zeros(missing, whole.size(1))])
        result: Tensor = whole if self.lora_order is None else whole.index_select(0, self.lora_order)
        return result

    def added_weight(self) -> Tensor:
        """See `slime_megatron.train.model.linear.Adapted`."""
        return (self.lora_scale * self.up().float()) @ self.down().float()

    @contextmanager
    def merged(self) -> Iterator[None]:
        """Inside, `weight` is the rounded sum, if there is one. What autograd would keep of it is made again when it is
        asked for."""
        if self.lora_beside:
            yield
            return
        with torch.no_grad():
            whole = whole_weight(self)

        def pack(saved: Tensor) -> Any:
            if saved.untyped_storage().data_ptr() != whole_ptr:
                return saved
            return saved.size(), saved.stride()

        def unpack(kept: Any) -> Tensor:
            if isinstance(kept, Tensor):
                return kept
            with torch.no_grad():
                return whole_weight(self).as_strided(*kept)

        whole_ptr = whole.untyped_storage().data_ptr()
        vars(self)["weight"] = whole  # is found before the parameter, which stays
        try:
            with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
                yield
        finally:
            del vars(self)["weight"]

    def low(self, input_: Tensor) -> Tensor:
        """A x, with the gradient that x has by it: of a sum x has that by W."""
        return F.linear(input_ if self.lora_beside else input_.detach(), self.down())

    def learning(self, output: Tensor, low: Tensor) -> Tensor:
        """The layer's output, from which A and B learn, of that of the sum, or of W alone, and of `low`, A x."""
        if self.lora_beside:
            return output + F.linear(low * self.lora_scale, self.up())
        result: Tensor = Learn.apply(output, low * self.lora_scale, self.up(), _of_factors)  # type: ignore[no-untyped-call]
        return result

    def shard_axes(self) -> dict[str, int]:
        """The dimension over which tensor parallelism divides A or B."""
        return {}


class Divided(Lora):
    """Of layers that Megatron-core divides over tensor-parallel ranks."""

    tp_group: Any

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """As that of the layer, with the adapters' parts as they are divided."""
        state: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, metadata)  # type: ignore[misc]
        axes = {f"{side}.{name}": axis for side, axis in self.shard_axes().items() for name in self.lora_A}
        tensors = {name: self.get_parameter(name) for name in axes}
        state |= sharded(tensors, self.tp_group, prefix, sharded_offsets, metadata, axes)
        if self.lora_halves:
            for name in (f"{prefix}lora_B.{name}" for name in self.lora_B):
                state[name] = apply_swiglu_sharded_factory(state[name], sharded_offsets)
        return state


class LoraColumnParallelLinear(Divided, ColumnParallelLinear):  # type: ignore[misc]
    """Divides its output."""

    def forward(self, input_: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """[s, ..., input] -> [t, ..., output / tp]."""
        with self.merged():
            output, bias = ColumnParallelLinear.forward(self, input_, *args, **kwargs)
        low = self.low(input_)
        if self.sequence_parallel:
            low = gather_from_sequence_parallel_region(low, tensor_parallel_output_grad=True, group=self.tp_group)
        return self.learning(output, low), bias

    def shard_axes(self) -> dict[str, int]:
        return {"lora_B": 0}


class LoraRowParallelLinear(Divided, RowParallelLinear):  # type: ignore[misc]
    """Divides its input."""

    def forward(self, input_: Tensor) -> tuple[Tensor, Tensor | None]:
        """[t, ..., input / tp] -> [s, ..., output]."""
        with self.merged():
            output, bias = RowParallelLinear.forward(self, input_)
        low = self.low(input_)
        if self.sequence_parallel:
            low = reduce_scatter_to_sequence_parallel_region(low, group=self.tp_group)
        return self.learning(output, low), bias

    def shard_axes(self) -> dict[str, int]:
        return {"lora_A": 1}


class LoraReplicatedLinear(Lora, ReplicatedLinear):
    """Whole on every rank, which applies it to its tokens."""

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """[s, ..., input] -> [s, ..., output]."""
        with self.merged():
            output, _ = ReplicatedLinear.forward(self, x)
        return self.learning(output, self.low(x)), None


KINDS: dict[type, type[Lora]] = {
    ColumnParallelLinear: LoraColumnParallelLinear,
    RowParallelLinear: LoraRowParallelLinear,
    ReplicatedLinear: LoraReplicatedLinear,
}


@cache
def _adapted_class(layer: type) -> type:
    """Its class with adapters; what a subclass does around the product, such as a norm behind it, it does as before."""
    kind = next(adapted for plain, adapted in KINDS.items() if issubclass(layer, plain))
    return kind if layer in KINDS else type(f"Lora{layer.__name__}", (layer, kind), {})


def adapt(layer: Any, parts: Sequence[Part], scale: float, *, beside: bool) -> None:
    """Give a layer of one of the classes of `KINDS`, or of a class made of one, adapters; B is zero at first."""
    plain: type = type(layer)
    layer.__class__ = _adapted_class(plain)
    parts = sorted(parts, key=lambda part: part.name)  # as `ParameterDict` keeps them
    rows = torch.cat([part.rows for part in parts])
    order = _places(rows, len(layer.weight))
    layer.register_buffer("lora_order", order, persistent=False)
    layer.lora_scale, layer.lora_halves, layer.lora_beside = scale, any(part.halves for part in parts), beside
    layer.lora_A = ParameterDict({part.name: _parameter(part.first.to(part.device)) for part in parts})
    sizes = {part.name: (len(part.rows), len(part.first)) for part in parts}
    layer.lora_B = ParameterDict(
        {
            part.name: _parameter(torch.zeros(sizes[part.name], dtype=part.first.dtype, device=part.device))
            for part in parts
        }
    )
    axes = layer.shard_axes()
    sees_shard = getattr(layer if hasattr(layer, "sequence_parallel") else layer.weight, "sequence_parallel", False)
    is_expert = getattr(layer, "is_expert", False)
    for side in ("lora_A", "lora_B"):
        for parameter in getattr(layer, side).values():
            if side in axes or is_expert:  # of an expert no other rank has a copy that would not count
                set_tensor_model_parallel_attributes(parameter, True, axes.get(side, 0), 1)
            else:
                parameter.sequence_parallel = sees_shard
            parameter.allreduce = getattr(layer.weight, "allreduce", True)  # False: over ranks with the same experts


def _parameter(values: Tensor) -> Any:
    parameter: Any = Parameter(values)
    parameter.of_adapter = True
    return parameter


def _places(rows: Tensor, size: int) -> Tensor | None:
    """[size] the position of each number below `size` in `rows`; of those that are not there, behind it."""
    missing = torch.ones(size, dtype=torch.bool)
    missing[rows] = False
    found = torch.cat([rows, missing.nonzero()[:, 0]])
    return None if torch.equal(found, torch.arange(size)) else torch.argsort(found)
