"""The router of a mixture of experts, whose balance is that of the tokens trained on, and the same in every layout."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from megatron.core.transformer.moe.moe_utils import MoEAuxLossAutoScaler
from megatron.core.transformer.moe.router import TopKRouter
from torch import Tensor

from slime.models.layer_losses import LOAD_BALANCING_LOSS, Z_LOSS, add_layer_loss


class Router(TopKRouter):  # type: ignore[misc]
    """Megatron-core's top-k router with its losses and its expert counts mended.

    Upstream, with a mask: counts of experts are masked over the wrong dimension, and a micro-batch of padding alone
    divides by zero. With losses per token: they are smaller by the number of tensor- and context-parallel ranks.

    Shape letters: t tokens of this rank's sequence shard, e experts. Masks are True on padding.
    """

    def loss_coefficients(self) -> Mapping[str, float]:
        found = {LOAD_BALANCING_LOSS: self.get_aux_loss_coeff("aux_loss"), Z_LOSS: self.config.moe_z_loss_coeff or 0.0}
        return {name: float(coefficient) for name, coefficient in found.items() if coefficient}

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
        counts = routing_map.sum(dim=0).float()
        dist.all_reduce(counts, group=self.tp_cp_group)
        # f_i = counts_i / (topk * tokens), P_i = sum of scores / tokens, all of it times tokens.
        scale = coefficient * self.num_experts / counts.sum().clamp(min=1)
        return self._attached(LOAD_BALANCING_LOSS, probs, scale * (counts @ scores_for_aux_loss.float().sum(dim=0)))

    def apply_z_loss(self, logits: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        """Mean squared logsumexp over all tokens of the step (Zoph et al. 2022, section 3.3), of logits [t, e]."""
        coefficient = self.config.moe_z_loss_coeff
        if not (coefficient and self.training and torch.is_grad_enabled()):
            return logits
        squares = logits.float().logsumexp(dim=-1).square()
        if padding_mask is not None:
            squares = squares.masked_fill(padding_mask, 0.0)
        return self._attached(Z_LOSS, logits, coefficient * squares.sum())

    def _attached(self, name: str, carrier: Tensor, loss: Tensor) -> Tensor:
        """`carrier`, whose backward pass starts that of `loss` too; gradients are divided by the step's tokens."""
        add_layer_loss(name, loss, self.config, self.layer_number)
        result: Tensor = MoEAuxLossAutoScaler.apply(carrier, loss)
        return result

    def _apply_expert_bias(self, routing_map: Tensor, padding_mask: Tensor | None = None) -> None:
        super()._apply_expert_bias(routing_map, None if padding_mask is None else padding_mask[:, None])
