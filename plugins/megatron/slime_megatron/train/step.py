"""One pass over a step's micro-batches through Megatron-core's schedules, forward only or with gradients."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from megatron.core.distributed import finalize_model_grads
from megatron.core.distributed.finalize_model_grads import _update_router_expert_bias, reset_model_temporary_tensors
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from slime.objective import LossTerms
from slime.observe.spans import span
from slime_megatron.train.local_batch import LocalMicroBatch
from slime_megatron.train.megatron import Model
from slime_megatron.train.objective import LossFunction, Others


@torch.no_grad()
def score(model: Model, micro_batches: Sequence[LocalMicroBatch], *, replays: bool = True) -> list[Tensor]:
    """What the last pipeline stage says of each micro-batch there, an empty list elsewhere. Of `PolicyModel` [2, t]
    log-probs and entropies, or inside `most_probable` [2, t, k] ids and log-probs.

    Args:
        replays: layers do what engines recorded (`slime.models.traits.Recording`), as in training.
    """
    scores: list[Tensor] = _run(model, micro_batches, lambda output, number: output, forward_only=True, replays=replays)
    return scores


@torch.no_grad()
def measure(
    model: Model, micro_batches: Sequence[LocalMicroBatch], loss_function: LossFunction, others: Others | None = None
) -> list[LossTerms]:
    """What `accumulate_gradients` returns, without gradients."""
    terms: list[LossTerms] = _run(model, micro_batches, loss_function, others=others, forward_only=True)
    return terms


class GradientCheck:
    """Sees whether this rank's own gradients are finite, before summing over ranks spreads them to all.

    With `train.ddp.overlap_grad_reduce` the sum has begun by then, and a whole data-parallel group looks guilty.
    Losses are means over the step already: Megatron's division by a number of tokens, one more pass over all gradients,
    is left out.

    Attributes:
        waits_at: time, in seconds of `time.perf_counter`, at which this rank's gradients were there, and the sum began.
    """

    def __init__(self, model: Model) -> None:
        self.is_finite, self.waits_at = True, 0.0
        self._config = model.config
        model.config.finalize_model_grads_func = self._finalize

    def _finalize(self, chunks: Sequence[Any], num_tokens: Tensor, **kwargs: Any) -> None:
        buffers = [buffer for chunk in chunks for buffer in (*chunk.buffers, *chunk.expert_parallel_buffers)]
        norms = torch.stack([torch.linalg.vector_norm(buffer.grad_data) for buffer in buffers])
        self.is_finite = bool(norms.isfinite().all())  # waits for the device
        self.waits_at = time.perf_counter()
        enabled, self._config.moe_router_enable_expert_bias = self._config.moe_router_enable_expert_bias, False
        finalize_model_grads(chunks, None, **kwargs)  # would move the expert biases, whatever was found
        self._config.moe_router_enable_expert_bias = enabled


def update_expert_bias(model: Model) -> None:
    """Move the routers' correction biases towards balance, by the tokens of a step that was found good."""
    if model.config.moe_router_enable_expert_bias and model.config.moe_router_bias_update_rate:
        _update_router_expert_bias(model.chunks, model.config)


def accumulate_gradients(
    model: Model,
    micro_batches: Sequence[LocalMicroBatch],
    loss_function: LossFunction,
    others: Others | None = None,
    *,
    replays: bool = True,
) -> list[LossTerms]:
    """Forward and backward over all micro-batches; gradients then lie reduced in the DDP buffers.

    Args:
        others: further tokens whose log-probs the loss reads.
        replays: as of `score`.

    Returns:
        What this rank's micro-batches add, on the last pipeline stage, an empty list elsewhere.
    """
    for chunk in model.chunks:
        chunk.zero_grad_buffer()
    reset_model_temporary_tensors(model.config, model.chunks)  # the routers' counts
    terms: list[LossTerms] = _run(
        model, micro_batches, loss_function, others=others, forward_only=False, replays=replays
    )
    return terms


def _run(
    model: Model,
    micro_batches: Sequence[LocalMicroBatch],
    function: Callable[..., Any],
    *,
    others: Others | None = None,
    forward_only: bool,
    replays: bool = True,
) -> Any:
    iterators = [iter(list(enumerate(micro_batches))) for _ in model.chunks]
    for chunk in model.chunks:
        chunk.train(not forward_only)
    found = get_forward_backward_func()(
        forward_step_func=partial(_forward_step, function, others, forward_only, replays),
        data_iterator=iterators if len(iterators) > 1 else iterators[0],
        model=model.chunks,
        num_microbatches=len(micro_batches),
        seq_length=max(micro.tokens.size(1) for micro in micro_batches),
        micro_batch_size=1,
        forward_only=forward_only,
        collect_non_loss_data=forward_only,
    )
    for chunk in model.chunks:
        chunk.train()
    return found


def _forward_step(
    function: Callable[..., Any],
    others: Others | None,
    forward_only: bool,
    replays: bool,
    micro_batches: Iterator[tuple[int, LocalMicroBatch]],
    chunk: Any,
) -> tuple[Tensor, Callable[..., Any]]:
    number, micro = next(micro_batches)
    packed = micro.packed.for_one_pass(replays=replays)
    asked = others(number) if others else None
    labels = micro.labels if asked is None else torch.cat([micro.labels, asked])
    with span("forward", micro_batch=number, tokens=micro.tokens.size(1)):
        output = chunk(micro.tokens, micro.position_ids, None, labels=labels, packed_seq_params=packed)
    if forward_only:
        return output, lambda scores, non_loss_data: function(scores, number)
    return output, partial(_loss, function, number)


def _loss(function: LossFunction, number: int, scores: Tensor) -> tuple[Tensor, int, Any]:
    """In Megatron's form of a sum over tokens, which leaves losses as they are. Nobody reads the number of tokens."""
    terms = function(scores, number)
    return terms.loss, 0, terms.detach()
