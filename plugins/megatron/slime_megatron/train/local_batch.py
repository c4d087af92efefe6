"""One rank's tensors of a micro-batch: the part of each sequence that its context-parallel rank holds, on its device.

Shape letter: t tokens of this context-parallel rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from megatron.core import parallel_state
from torch import Tensor

from slime.errors import SlimeError
from slime.models.traits import ExtraLoss
from slime.objective import Column
from slime.train.packing import num_readers, shared_rows
from slime.types import KEPT_TOKENS, Batch, MicroBatch
from slime_megatron.train.model.packed.context_parallel import row_index, runs_of_rank
from slime_megatron.train.model.packed.copies import on_device
from slime_megatron.train.model.packed.sequences import PackedSequences


@dataclass(frozen=True)
class LocalMicroBatch:
    """What the model and the loss read.

    Attributes:
        tokens, labels, position_ids: [1, t] int64.
        packed: sequence borders, for every layer.
        loss_mask, loss_weights: [t] fp32, see `slime.types.MicroBatch`.
        columns: [t] or [t, width] by name, see `slime.types.MicroBatch`; fp32 or int32.
        sequence_lengths: [num_sequences] int64, on the CPU: tokens that this rank holds of each sequence, with padding.
        attempt_lengths: [num_attempts] the same of each attempt, where attempts are whole.
    """

    tokens: Tensor
    labels: Tensor
    position_ids: Tensor
    packed: PackedSequences
    loss_mask: Tensor
    loss_weights: Tensor
    columns: Mapping[str, Tensor]
    sequence_lengths: Tensor
    attempt_lengths: Tensor | None


def require_tokens(micro_batches: Sequence[MicroBatch], columns: Sequence[Column], vocab_size: int) -> None:
    """Raises SlimeError: an id is of no token of the model. Embeddings on several ranks would make zeros of it."""
    for micro in micro_batches:
        for ids in (micro.tokens, micro.labels):
            if ids.min(initial=0) < 0 or ids.max(initial=0) >= vocab_size:
                place = int(np.argmax((ids < 0) | (ids >= vocab_size)))
                sequence = int(np.searchsorted(micro.cu_seqlens, place, side="right")) - 1
                what = f"there is a token {ids[place]}, and the model has {vocab_size}"
                todo = "Mend what makes such ids: the tokenizer, or a program that gives its own."
                raise SlimeError(what, where=f"sample {micro.sample_ids[sequence]} of the step", todo=todo)
    for name in (column.name for column in columns if column.ids):
        for ids in (micro.columns[name] for micro in micro_batches if name in micro.columns):
            unknown = ids[(ids < 0) | (ids >= vocab_size)]
            if len(unknown):
                what = f"there is a token {unknown[0]}, and the model has {vocab_size}"
                where, todo = f"column '{name}' of the samples", "Ask a model with the same tokens."
                raise SlimeError(what, where=where, todo=todo)


def local_micro_batches(
    batch: Batch, device: torch.device, *, contiguous: bool = False, extra_losses: Sequence[ExtraLoss] = ()
) -> list[LocalMicroBatch]:
    """This rank's micro-batches of an optimizer step, in order.

    Args:
        batch: whole, or this rank's share.
        contiguous: how context parallelism cuts sequences, see `.model.packed.context_parallel.runs_of_rank`.
        extra_losses: whose parts of the model find in `packed` what they are trained on.
    """
    mine = batch.micro_batches[parallel_state.get_data_parallel_rank()]
    assert mine, "every rank has micro-batches, and this is its share"
    return [_local(micro, batch.num_tokens, device, contiguous, extra_losses) for micro in mine]


def _local(
    micro: MicroBatch,
    num_step_tokens: int,
    device: torch.device,
    contiguous: bool,
    extra_losses: Sequence[ExtraLoss],
) -> LocalMicroBatch:
    cp_size, cp_rank = parallel_state.get_context_parallel_world_size(), parallel_state.get_context_parallel_rank()
    index = row_index(runs_of_rank(micro.cu_seqlens, cp_size, cp_rank, contiguous=contiguous))

    def tensor(values: np.ndarray) -> Tensor:
        return on_device(torch.from_numpy(values[index]), device)

    borders = micro.cu_seqlens.tolist()
    prefixes = None if micro.prefixes is None else shared_rows(borders, micro.prefixes.tolist())
    packed = PackedSequences.of(borders, cp_size, cp_rank, device, contiguous=contiguous, prefixes=prefixes)
    packed.padding, packed.num_step_tokens = tensor(micro.is_padding), num_step_tokens
    packed.readers = None if prefixes is None else tensor(num_readers(micro).astype(np.float32))
    packed.recorded = {name: tensor(values) for name, values in micro.recorded.items()}
    packed.loss_weights = tensor(micro.loss_weights)
    columns = {name: tensor(values) for name, values in micro.columns.items()}
    packed.kept = columns.get(KEPT_TOKENS)
    for extra in extra_losses:
        extra.prepare(packed, micro, tensor)
    lengths = np.diff(micro.cu_seqlens).astype(np.int64) // cp_size
    attempts = None
    if micro.attempt_sizes is not None:
        attempts = torch.from_numpy(np.add.reduceat(lengths, np.cumsum([0, *micro.attempt_sizes[:-1]])))
    return LocalMicroBatch(
        tokens=tensor(micro.tokens)[None],
        labels=tensor(micro.labels)[None],
        position_ids=tensor(micro.position_ids)[None],
        packed=packed,
        loss_mask=tensor(micro.loss_mask),
        loss_weights=packed.loss_weights,
        columns=columns,
        sequence_lengths=torch.from_numpy(lengths),
        attempt_lengths=attempts,
    )
