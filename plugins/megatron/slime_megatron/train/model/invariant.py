"""What a model must be made of so that its log-probs are an engine's to the bit (`model.batch_invariant`)."""

from __future__ import annotations

import torch
from megatron.core.transformer.attention import Attention
from megatron.core.transformer.moe.moe_layer import MoELayer
from torch import Tensor

from batch_invariant import rows
from slime.errors import SlimeError
from vocabulary_logprobs.logprob import PlainKernels


class InvariantKernels(PlainKernels):
    """On a CPU: sums over the vocabulary in one order, with whatever number of rows and threads."""

    def statistics(self, logits: Tensor, local_labels: Tensor, temperature: float) -> Tensor:
        """As `PlainKernels`."""
        return rows.statistics(logits, local_labels, temperature)


def check_layers(model: torch.nn.Module) -> None:
    """
    Raises:
        SlimeError: a layer computes by operators of its own, which no engine has.
    """
    for layer in model.modules():
        core = getattr(layer, "core_attention", layer)
        unknown = isinstance(layer, Attention) and _name(core) != "PackedAttention"
        unknown |= isinstance(layer, MoELayer) and not getattr(layer, "batch_invariant", False)
        if unknown or getattr(layer, "zero_centered", False):
            what = f"does not hold for {_name(core)}, which computes otherwise than engines do"
            todo = "Set it to false; where it is Transformer Engine's, remove that package instead."
            raise SlimeError(what, where="model.batch_invariant", todo=todo)


def _name(layer: torch.nn.Module) -> str:
    return type(layer).__name__
