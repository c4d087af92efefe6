"""The router of a mixture of experts, whose balance is that of the tokens trained on, and the same in every layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from batch_invariant import experts
from batch_invariant.passes import instead, is_on
from slime_megatron.mixture_of_experts import LOAD_BALANCING_LOSS, Z_LOSS
from slime_megatron.mixture_of_experts.replay import DIFFERS, REPLAYED, ROUTED_EXPERTS, RoutedExperts
from slime_megatron.mixture_of_experts.routes import Own, Routes
from slime_megatron.mixture_of_experts.rows import chosen
from slime_megatron.train.model.layer_losses import add_layer_loss
from slime_megatron.train.model.packed.sequences import PackedSequences, TakesPrefixes


class Pass(NamedTuple):
    """What a router is told of a pass that begins.

    Attributes:
        routes: the experts that engines recorded; None: it chooses for itself.
        readers: [t] fp32, of how many sequences each token is a part, 0 of padding; None: of one.
        num_step_tokens: of the whole optimizer step, over which losses are means.
    """

    routes: Routes | None = None
    readers: Tensor | None = None
    num_step_tokens: int = 1


class Router(TopKRouter, TakesPrefixes):  # type: ignore[misc]
    """Megatron-core's top-k router with its losses and its expert counts mended. A token of a prompt that samples share
    counts in them once for each sample, as if each had a prompt of its own.

    Upstream, with a mask: counts of experts are masked over the wrong dimension, and a micro-batch of padding alone
    divides by zero. With losses per token: they are smaller by the number of tensor- and context-parallel ranks.

    Shape letters: t tokens of this rank's sequence shard, e experts. Masks are True on padding.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.router_replay: Any = None  # Megatron-core's own knows no micro-batches
        self.given = Pass()

    def gating(self, input: Tensor) -> Tensor:
        """[..., hidden_size] -> logits [..., e]. Upstream computes the gradient of a frozen weight, too."""
        if self.weight.requires_grad:
            logits: Tensor = super().gating(input)
            return logits
        dtype = {"fp32": torch.float32, "fp64": torch.float64}.get(self.config.moe_router_dtype, input.dtype)
        return F.linear(input.to(dtype), self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))

    def loss_coefficients(self) -> Mapping[str, float]:
        found = {LOAD_BALANCING_LOSS: self.get_aux_loss_coeff("aux_loss"), Z_LOSS: self.config.moe_z_loss_coeff or 0.0}
        is_recorded = self.layer_number <= self.config.num_layers  # not of a prediction layer behind the last one
        if self.config.moe_enable_routing_replay and is_recorded:
            found |= {REPLAYED: 1.0, DIFFERS: 1.0}
        return {name: float(coefficient) for name, coefficient in found.items() if coefficient}

    def begin_pass(self, packed: PackedSequences, shard: dist.ProcessGroup | None) -> None:
        """In the pass that begins, take the experts that engines recorded, its own where they recorded none."""
        recorded, routes, readers = packed.recorded.get(ROUTED_EXPERTS), None, packed.readers_of(shard)
        if recorded is not None:
            layers = RoutedExperts.of(vars(self.config)).layers
            of_layer = recorded[:, layers.index(self.layer_number - 1)]
            routes = Routes(of_layer if shard is None else of_layer.chunk(shard.size())[shard.rank()], readers)
        self.given = Pass(routes, readers, packed.num_step_tokens)

    def routing(self, logits: Tensor, padding_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """logits [..., e] -> probabilities and map of the chosen experts, both [t, e]."""
        if not is_on():
            return self._replayed(logits, padding_mask, self.given.routes)
        of_tokens, how = logits.detach().view(-1, self.num_experts), self.invariant_routing()
        own = Own(experts.choose(of_tokens, how, self.expert_bias), self.given.routes)
        ordinary, routing_map = self._replayed(logits, padding_mask, own)
        of_experts = chosen(routing_map, self.topk)

        def ours(_: Tensor) -> Tensor:
            weights = experts.weigh(of_tokens, of_experts, how)
            return torch.zeros_like(ordinary).scatter(1, of_experts, weights)

        return instead(lambda ordinary: ordinary, ours, ordinary), routing_map

    def invariant_routing(self) -> experts.Routing:
        """How experts are weighed where `model.batch_invariant` is set: as the config says."""
        config, sigmoid = self.config, self.score_function == "sigmoid"
        normalised = self.topk > 1 if sigmoid else not config.moe_router_pre_softmax
        return experts.Routing(self.topk, sigmoid, normalised, config.moe_router_topk_scaling_factor or 1.0)

    def _replayed(
        self, logits: Tensor, padding_mask: Tensor | None, replay: Routes | Own | None
    ) -> tuple[Tensor, Tensor]:
        """Upstream's routing, which asks `replay` for its top-k, or else who is set to answer (`fp8_gap`)."""
        before = self.router_replay
        try:
            self.router_replay = replay or before
            found: tuple[Tensor, Tensor] = super().routing(logits, padding_mask)
        finally:
            self.router_replay = before
        routes = self.given.routes
        if routes is not None and self.training and torch.is_grad_enabled():  # once, also if it is computed again
            for name, number in ((REPLAYED, routes.num_replayed), (DIFFERS, routes.num_different)):
                add_layer_loss(name, number / self.given.num_step_tokens, self.config, self.layer_number)
        return found

    def _apply_aux_loss(
        self, probs: Tensor, scores_for_aux_loss: Tensor, routing_map: Tensor, with_padding_mask: bool = False
    ) -> Tensor:
        """e sum_i f_i P_i of the micro-batch (Fedus et al. 2022, section 2.2), which counts as it has tokens.

        Args:
            probs: [t, e] carries the gradient on.
            scores_for_aux_loss, routing_map: [t, e], 0 on padding.
        """
        coefficient = self.get_aux_loss_coeff("aux_loss")
        if not coefficient:
            return probs
        if self.given.routes is not None:
            routing_map = self.given.routes.counted(routing_map)
        counts, scores = (self._sum(each.float()) for each in (routing_map, scores_for_aux_loss))
        dist.all_reduce(counts, group=self.tp_cp_group)
        # f_i = counts_i / (topk * tokens), P_i = sum of scores / tokens, all of it times tokens.
        scale = coefficient * self.num_experts / counts.sum().clamp(min=1)
        return self._attached(LOAD_BALANCING_LOSS, probs, scale * (counts @ scores))

    def apply_z_loss(self, logits: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Mean squared logsumexp over all tokens of the step (Zoph et al. 2022, section 3.3), of logits [t, e]."""
        coefficient = self.config.moe_z_loss_coeff
        if not (coefficient and self.training and torch.is_grad_enabled()):
            return logits
        squares = logits.float().logsumexp(dim=-1).square()
        if padding_mask is not None:
            squares = squares.masked_fill(padding_mask, 0.0)
        return self._attached(Z_LOSS, logits, coefficient * self._sum(squares))

    def _sum(self, values: Tensor) -> Tensor:
        """[t, ...] over the tokens, each of which counts for every sequence that it is a part of."""
        return values.sum(dim=0) if self.given.readers is None else torch.tensordot(self.given.readers, values, 1)

    def _attached(self, name: str, carrier: Tensor, loss: Tensor) -> Tensor:
        """`carrier`, whose backward pass starts that of `loss` too, a sum over tokens, divided by those of the step."""
        loss = loss / self.given.num_step_tokens
        add_layer_loss(name, loss, self.config, self.layer_number)
        result: Tensor = MoEAuxLossAutoScaler.apply(carrier, loss)
        return result

    def _apply_expert_bias(self, routing_map: Tensor, padding_mask: Tensor | None = None) -> None:
        """Count the tokens of each expert, by which its correction bias is moved after the step."""
        if not (self.enable_expert_bias and torch.is_grad_enabled()):  # nor in a pass that is computed again
            return
        with torch.no_grad():
            counted = routing_map if padding_mask is None else routing_map & ~padding_mask[:, None]
            self.local_tokens_per_expert += self._sum(counted.float())
