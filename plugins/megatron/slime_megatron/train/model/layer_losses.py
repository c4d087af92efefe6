"""Losses that layers add beside the policy's: told where they are computed, collected as metrics of an optimizer step.

Each rank tells what its own tokens contribute to a mean over the step, in the scale in which the gradient starts: times
the loss's coefficient. Plain sums over layers, micro-batches and ranks are left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.transformer.moe.moe_utils import (
    clear_aux_losses_tracker,
    get_moe_layer_wise_logging_tracker,
    save_to_aux_losses_tracker,
)
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import Tensor, nn

from slime.models.traits import Traits


@runtime_checkable
class HasLosses(Protocol):
    """A module of the model that calls `add_layer_loss`."""

    def loss_coefficients(self) -> Mapping[str, float]:
        """The losses that it adds while it learns, none of 0."""


def add_layer_loss(name: str, value: Tensor, config: TransformerConfig, layer_number: int) -> None:
    """What a micro-batch contributes to one layer's loss. Not to be called in a pass that is computed again."""
    num_layers = config.num_layers + (config.mtp_num_layers or 0)
    save_to_aux_losses_tracker(name, value.detach(), layer_number, num_layers)


class LayerLosses:
    """The losses of all layers of a model, as means over the layers that have them.

    Collective over all ranks, as is `collect`'s reader.

    Args:
        traits: of the model's blocks, which name the losses.
    """

    def __init__(self, modules: Sequence[nn.Module], traits: Sequence[Traits], device: torch.device) -> None:
        names = [name for trait in traits for name in trait.layer_losses]
        scales = torch.zeros(len(names), dtype=torch.float64, device=device)
        for module in chain.from_iterable(chunk.modules() for chunk in modules):
            if isinstance(module, HasLosses) and any(parameter.requires_grad for parameter in module.parameters()):
                for name, coefficient in module.loss_coefficients().items():
                    assert name in names, f"{type(module).__name__} adds {name}, which no traits of the model name"
                    scales[names.index(name)] += coefficient
        dist.all_reduce(scales)
        # Every layer was counted by each rank that shares its pipeline stage.
        scales /= dist.get_world_size() / parallel_state.get_pipeline_model_parallel_world_size()
        self._scales = {name: scale for name, scale in zip(names, scales.tolist(), strict=True) if scale}

    def collect(self, device: torch.device) -> dict[str, Tensor]:
        """This rank's parts of the step's losses, whose sums over ranks are means over tokens; nothing is left."""
        tracker = get_moe_layer_wise_logging_tracker()
        zero = torch.zeros((), dtype=torch.float64, device=device)
        values = {name: tracker[name]["values"].double().sum() if name in tracker else zero for name in self._scales}
        clear_aux_losses_tracker()
        return {name: values[name] / scale for name, scale in self._scales.items()}
