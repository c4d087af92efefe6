"""A model and what trains it: gradients, the numbers of an optimizer step, and the step itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from slime.models.traits import ExtraLoss
from slime_megatron.train import metrics
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.megatron import Model
from slime_megatron.train.model.layer_losses import LayerLosses
from slime_megatron.train.objective import StepLoss, with_extra_losses
from slime_megatron.train.offload import Offload
from slime_megatron.train.optimizer import Optimizer
from slime_megatron.train.step import GradientCheck, accumulate_gradients, measure, update_expert_bias

Explain = Callable[[Mapping[str, float]], Mapping[str, float]]


class Learning:
    """Of one rank. Collective over all ranks.

    Args:
        whose: in front of "optimizer step" in messages.

    Attributes:
        own_seconds: of all passes with gradients so far, up to where they wait for other replicas of the model.
    """

    def __init__(self, model: Model, optimizer: Optimizer, device: torch.device, whose: str = "") -> None:
        self._model, self._optimizer, self._device, self._whose = model, optimizer, device, whose
        self._gradient_check, self.own_seconds = GradientCheck(model), 0.0
        self._layer_losses = LayerLosses(model.modules, model.traits, device)
        self.offload = Offload(model, optimizer, device)

    def step(
        self,
        num_loss_tokens: int,
        micro_batches: Sequence[LocalMicroBatch],
        loss: StepLoss,
        *,
        step: int,
        extra_losses: Sequence[tuple[ExtraLoss, float]] = (),
        learns: bool = True,
        replays: bool = True,
        explain: Explain | None = None,
    ) -> dict[str, float]:
        """Gradients, metrics (which refuse what is not finite), then the step itself.

        Args:
            num_loss_tokens: over all ranks.
            extra_losses: of blocks of the model, with their weights.
            learns: otherwise there are neither gradients nor a step, but the objective's metrics alone.
            explain: gives more metrics, before the weights change.
        """
        names, layer_losses = loss.metrics, dict[str, Tensor]()
        if learns:
            function = with_extra_losses(loss, extra_losses, [micro.packed for micro in micro_batches])
            names = replace(names, means=(*names.means, *(extra.name for extra, _ in extra_losses)))
            began = time.perf_counter()
            terms = accumulate_gradients(self._model, micro_batches, function, loss.others, replays=replays)
            self.own_seconds += self._gradient_check.waits_at - began
            layer_losses = self._layer_losses.collect(self._device)
        else:
            terms = measure(self._model, micro_batches, loss, loss.others)
        values = metrics.reduce_terms(
            terms,
            names,
            layer_losses=layer_losses,
            num_loss_tokens=num_loss_tokens,
            gradients_are_finite=self._gradient_check.is_finite or not learns,
            where=f"{self._whose}optimizer step {step}",
            device=self._device,
        )
        values |= {**(explain(values) if explain else {}), "num_tokens": float(micro_batches[0].packed.num_step_tokens)}
        if not learns:
            return values
        update_expert_bias(self._model)
        grad_norm, lr = self._optimizer.step()
        return values | {"grad_norm": grad_norm, "lr": lr}
