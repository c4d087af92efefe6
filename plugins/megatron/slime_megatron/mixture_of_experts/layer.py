"""A layer with experts whose device never waits for the host, nor for the other ranks while it has something to do.

Megatron-core's layer asks the device for sizes in its permutations, so that the host cannot run ahead, adds rows up in
bf16 in an order that differs from run to run, and computes nothing while tokens are on their way.

Shape letters: s tokens of a rank's sequence shard, e experts, h hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from megatron.core import tensor_parallel
from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import Tensor

from batch_invariant import experts as invariant
from batch_invariant.passes import instead, is_on
from slime_megatron.mixture_of_experts.exchange import Exchange, OnHost
from slime_megatron.mixture_of_experts.grouped import GroupedExperts, Groups
from slime_megatron.mixture_of_experts.rows import Order, chosen, collect, spread
from slime_megatron.train.model.packed.sequences import PackedSequences


class PackedMoELayer(MoELayer):  # type: ignore[misc]
    """Megatron-core's, whose router is told of the pack (`slime_megatron.transformer.decoder.module.ReadsPack`), and of
    the same one where the layer is computed again: a pipeline has begun others by then."""

    moe_layer_recompute: bool

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recomputes, self.moe_layer_recompute = self.moe_layer_recompute, False  # not upstream's

    def begin_pass(self, packed: PackedSequences, shard: dist.ProcessGroup | None) -> None:
        """See `Router.begin_pass`."""
        self.router.begin_pass(packed, shard)

    def forward(
        self, hidden_states: Tensor, intermediate_tensors: None = None, padding_mask: Tensor | None = None
    ) -> tuple[Tensor, None]:
        """[s, 1, h], and True on padding [1, s] -> [s, 1, h], and no bias."""
        assert intermediate_tensors is None, "it is of CUDA graphs, which slime does not use"
        given = self.router.given

        def mixed(hidden_states: Tensor, padding_mask: Tensor | None) -> Tensor:
            self.router.given = given
            return self._mixed(hidden_states, padding_mask)

        if self._recomputes:
            return tensor_parallel.checkpoint(mixed, False, hidden_states, padding_mask), None
        return mixed(hidden_states, padding_mask), None

    def _mixed(self, hidden_states: Tensor, padding_mask: Tensor | None) -> Tensor:
        result: Tensor = super().forward(hidden_states, padding_mask=padding_mask)[0]
        return result


class ExpertLayer(PackedMoELayer):
    """Megatron-core's modules and parameters. No expert is cut (`expert_tensor_parallel_size` is 1).

    Attributes:
        batch_invariant: in a `batch_invariant.passes.forward_pass` its values are of that library's operators.
    """

    batch_invariant = True

    def _mixed(self, hidden_states: Tensor, padding_mask: Tensor | None) -> Tensor:
        mask = None if padding_mask is None else padding_mask.transpose(0, 1).bool()
        probabilities, routing_map = self.router(hidden_states, mask)
        topk = self.config.moe_router_topk
        experts = chosen(routing_map, topk)
        counts = self._counts(routing_map)
        on_host = OnHost(counts)
        by_expert = Order.by_expert(experts)
        order = by_expert.of_tokens(topk)
        rows = spread(hidden_states.flatten(0, 1), order)
        weights = spread(probabilities.gather(1, experts).flatten(), by_expert)
        if self.ep_group.size() == 1:
            shared = self.shared_experts_compute(hidden_states)
            result = self._of_experts(rows, weights, Groups(counts, on_host))
        else:
            result, shared = self._exchanged(hidden_states, rows, weights, counts, on_host)
        mixed = self._collected(result, order).view_as(hidden_states)
        return mixed if shared is None else mixed + shared

    def _counts(self, routing_map: Tensor) -> Tensor:
        """[ranks, e] rows that each rank sends to each expert."""
        of_rank = routing_map.sum(dim=0)
        if self.ep_group.size() == 1:
            return of_rank[None]
        of_all = of_rank.new_empty(self.ep_group.size() * len(of_rank))
        dist.all_gather_into_tensor(of_all, of_rank, group=self.ep_group)
        return of_all.view(-1, len(of_rank))

    def _exchanged(
        self, hidden_states: Tensor, rows: Tensor, weights: Tensor, counts: Tensor, on_host: OnHost
    ) -> tuple[Tensor, Tensor | None]:
        """What the experts of all ranks make of this rank's rows, and what the shared expert makes of its tokens while
        the rows are on their way."""
        group, own = self.ep_group, self.local_expert_indices
        own_counts = counts[:, own[0] : own[-1] + 1]
        on_host_own = on_host.part(own[0], own[-1] + 1)
        sent = on_host.values[group.rank()].view(group.size(), -1).sum(dim=1).tolist()
        received = on_host_own.values.sum(dim=1).tolist()
        there, weights_there, back = (Exchange(group, *sizes) for sizes in [(sent, received)] * 2 + [(received, sent)])
        leaving, leaving_weights = there.depart(rows), weights_there.depart(weights)
        shared = self.shared_experts_compute(hidden_states)
        chunks = Order.of_chunks(own_counts, sum(received))
        arrived = spread(there.arrive(leaving), chunks)
        arrived_weights = spread(weights_there.arrive(leaving_weights), chunks)
        result = self._of_experts(arrived, arrived_weights, Groups(own_counts, on_host_own))
        return back.arrive(back.depart(collect(result, chunks))), shared

    def _of_experts(self, rows: Tensor, weights: Tensor, groups: Groups) -> Tensor:
        grouped = isinstance(self.experts, GroupedExperts)

        def ordinary(rows: Tensor, weights: Tensor) -> Tensor:
            result: Tensor = self.experts(rows, groups if grouped else groups.sizes, weights)[0]
            return result

        def ours(rows: Tensor, weights: Tensor) -> Tensor:
            return invariant.expert_rows(rows, weights, groups.ends, *matrices(self.experts))

        return instead(ordinary, ours, rows, weights) if is_on() else ordinary(rows, weights)

    def _collected(self, rows: Tensor, order: Order) -> Tensor:
        if not is_on():
            return collect(rows, order)
        return instead(lambda rows: collect(rows, order), lambda rows: invariant.sums(rows, order.rows), rows)


def matrices(experts: Any) -> tuple[Sequence[Tensor] | Tensor, Sequence[Tensor] | Tensor]:
    """By which experts multiply rows: of each [h, 2f], the gate first, and [f, h]."""
    if isinstance(experts, GroupedExperts):
        first, second = (getattr(experts, name).view(experts.shape_of(name)) for name in ("weight1", "weight2"))
        return first, second
    layers = experts.local_experts
    return [each.linear_fc1.weight.t() for each in layers], [each.linear_fc2.weight.t() for each in layers]
