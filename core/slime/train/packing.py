"""From a list of sequences to packed micro-batches for every rank, with the loss denominators computed beforehand.

Nothing here depends on chance: the same samples give the same packs. No torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np

from slime.config.schema import LossMean, SlimeConfig
from slime.errors import SlimeError
from slime.models.blocks import Attention
from slime.train.bins import Shape, Unit, attempts, padded, share_out
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS, Batch, MicroBatch, TrainSample

log = logging.getLogger(__name__)


class RankLayout(NamedTuple):
    """Facts of a trainer rank that the driver packs by; all but the first are the same on every rank."""

    data_parallel_rank: int
    data_parallel_size: int
    packing_align: int
    micro_batch_multiple: int
    share_below: float
    attention: Sequence[Attention]
    lookahead: int = 0


def pack(
    samples: Sequence[TrainSample],
    *,
    num_dp: int,
    align: int,
    max_tokens: int,
    loss_mean: LossMean,
    max_response_tokens: int | None = None,
    num_optimizer_steps: int = 1,
    micro_batch_multiple: int = 1,
    share_below: float = 0.0,
    attention: Sequence[Attention] = (),
    whole_attempts: bool = False,
    lookahead: int = 0,
) -> list[Batch]:
    """Split samples into optimizer steps and pack each step's sequences into micro-batches.

    Args:
        samples: of one rollout, groups next to one another; step i trains on the i-th of `num_optimizer_steps` parts.
            A part without a loss token makes none. Segments of an attempt stay in one step.
        num_dp: data-parallel ranks; each gets the same number of micro-batches and nearly the same work, and those that
            the ranks are at together are alike.
        align: every sequence is padded to a multiple of this many tokens.
        max_tokens: no micro-batch is longer, padding included.
        loss_mean: what the sum of weighted token losses over a whole step amounts to.
        max_response_tokens: what `LossMean.constant` divides by, beside the number of attempts; demonstrations, which
            have no advantages, have no such length either and get `LossMean.token`.
        micro_batch_multiple: the number of micro-batches a rank is a multiple of this (interleaved pipelines).
        share_below: attempts next to one another that begin with the same prompt share it, and their segments what
            else they have in common before their first loss token, where that takes no more micro-batches and leaves at
            most this share of the step's tokens; see `MicroBatch.prefixes`. 0: nothing is shared.
        attention: what it is beside all else that is done for a token (`slime.plan.flops.attention`).
        whole_attempts: all segments of an attempt stand in one micro-batch, and `loss_mean` is over attempts.
        lookahead: tokens behind the next one that blocks of the model predict (`slime.models.traits.ExtraLoss`).

    Raises:
        SlimeError: a sequence, or a whole attempt, is longer than `max_tokens`, a log-prob is not finite, or
            no sample has a loss token.
    """
    lengths = padded(np.asarray([len(sample.tokens) for sample in samples]), align)
    found = attempts(samples, range(len(samples)))
    _check(samples, lengths, max_tokens)
    if not any(sample.loss_mask.any() for sample in samples):
        what, todo = "no sample has a token to learn from", "Check the data: every response is empty or masked."
        raise SlimeError(what, where="loss masks", todo=todo)
    if whole_attempts:
        loss_mean = LossMean.sample
        for unit in found:
            if (num_rows := int(lengths[unit].sum())) > max_tokens:
                whole = f"samples {unit[0]} to {unit[-1]} belong together and have {num_rows} tokens"
                raise _over_cap(whole, num_rows, max_tokens)
    steps = np.array_split(np.arange(len(found)), num_optimizer_steps)
    weigh = partial(_token_weights, loss_mean=loss_mean, max_response_tokens=max_response_tokens)
    shape = Shape(num_dp, micro_batch_multiple, align, max_tokens, share_below, attention, whole_attempts, lookahead)
    build = partial(_batch, samples, shape, weigh)
    members = [[i for number in step for i in found[number]] for step in steps]
    return [build(step) for step in members if any(samples[i].loss_mask.any() for i in step)]


def skipped_steps(num_batches: int, num_steps: int, step: int) -> dict[str, float]:
    """The metric of optimizer steps that masks have left nothing to; nothing where there are none."""
    if num_batches == num_steps:
        return {}
    log.warning("step %d takes %d optimizer steps of %d: no token is left for the others", step, num_batches, num_steps)
    return {"train/skipped_steps": float(num_steps - num_batches)}


def _check(samples: Sequence[TrainSample], lengths: np.ndarray, max_tokens: int) -> None:
    for index in np.flatnonzero(lengths > max_tokens)[:1].tolist():
        what = f"sample {index} has {samples[index].num_tokens} tokens ({lengths[index]} padded)"
        raise _over_cap(what, lengths[index], max_tokens, ", or lower the prompt and response limits")
    columns = samples[0].columns.keys() if samples else ()
    for index, sample in enumerate(samples):
        assert len(sample.loss_mask) < len(sample.tokens), f"sample {index} has no prompt token"
        assert sample.columns.keys() == columns, "all samples have the same columns"


def _over_cap(what: str, num_rows: int, max_tokens: int, otherwise: str = "") -> SlimeError:
    todo = f"Raise it to {num_rows} or more{otherwise}."
    return SlimeError(f"{what}, the cap is {max_tokens}", where="train.max_tokens_per_micro_batch", todo=todo)


def _check_logprobs(micro_batches: Iterable[MicroBatch], samples: Sequence[TrainSample]) -> None:
    """JSON has no -inf: what an engine sends for it arrives as one or as NaN."""
    with np.errstate(invalid="ignore"):  # of infinities in a sum
        is_finite = all(np.isfinite(micro.columns[ROLLOUT_LOGPROBS].sum()) for micro in micro_batches)
    for index, sample in () if is_finite else enumerate(samples):
        logprobs = sample.columns[ROLLOUT_LOGPROBS]
        for first in np.flatnonzero(~np.isfinite(logprobs) & (sample.loss_mask != 0))[:1]:
            token = sample.tokens[sample.num_tokens - sample.num_response_tokens + first]
            raise SlimeError(
                f"the engine gave log-prob {logprobs[first]:g} to token {token}, which it had sampled itself",
                where=f"sample {index} of the rollout, response token {first}",
                todo="Its logits overflow or its sampler is broken: try another precision, attention_backend or "
                "sampling_backend in rollout.sglang.",
            )


def _batch(
    samples: Sequence[TrainSample],
    shape: Shape,
    weigh: Callable[[Sequence[TrainSample], Sequence[int]], list[float]],
    members: list[int],
) -> Batch:
    chosen = [samples[i] for i in members]
    num_learnt = [int(np.count_nonzero(sample.loss_mask)) for sample in chosen]
    weights = weigh(chosen, num_learnt)
    weight_of = dict(zip(members, weights, strict=True))
    micro_batches = tuple(
        tuple(_micro_batch(samples, weight_of, shape, units) for units in of_rank)
        for of_rank in share_out(samples, members, shape)
    )
    if ROLLOUT_LOGPROBS in chosen[0].columns:
        _check_logprobs((micro for of_rank in micro_batches for micro in of_rank), samples)
    return Batch(
        micro_batches=micro_batches,
        num_tokens=sum(sample.num_tokens for sample in chosen),
        num_loss_tokens=sum(num_learnt),
    )


def _token_weights(
    samples: Sequence[TrainSample], num_learnt: Sequence[int], loss_mean: LossMean, max_response_tokens: int | None
) -> list[float]:
    """By sample, the factor of each of its token losses, so that a plain sum is the mean: over attempts, of which the
    samples may be segments. `num_learnt`: tokens of each sample that the loss is of.

    An attempt without loss tokens has no mean of its own and does not count, except in a constant.
    """
    demonstrates = ADVANTAGES not in samples[0].columns
    if loss_mean is LossMean.token or (loss_mean is LossMean.constant and demonstrates):
        return [1 / sum(num_learnt)] * len(samples)
    found = attempts(samples, range(len(samples)))
    if loss_mean is LossMean.constant:
        assert max_response_tokens, "the constant is a length times the number of samples"
        return [1 / (len(found) * max_response_tokens)] * len(samples)
    counts = [sum(num_learnt[i] for i in segments) for segments in found]
    num_counted = sum(count > 0 for count in counts)
    weights = [1 / (num_counted * count) if count else 0.0 for count in counts]
    return [weight for weight, segments in zip(weights, found, strict=True) for _ in segments]


def _micro_batch(
    samples: Sequence[TrainSample], weight_of: dict[int, float], shape: Shape, units: list[Unit]
) -> MicroBatch:
    """Whole sequences stand in order of length: equal ones side by side let attention run on a view."""
    if not units:
        return _empty(shape, samples[0].columns)
    content = [i for unit in units for i in unit.members]
    members = [samples[i] for i in content]
    skipped = [count for unit in units for count in unit.shared]
    own = np.asarray([len(sample.tokens) for sample in members]) - skipped
    lengths = padded(own, shape.align)
    ends = np.cumsum(lengths)
    starts, num_tokens = ends - lengths, int(ends[-1])
    num_predicting = np.fromiter((len(sample.loss_mask) for sample in members), np.int64, len(members))
    lasts = starts + own - 1
    predicting = list(map(slice, (lasts - num_predicting).tolist(), lasts.tolist()))  # the response, shifted by one
    tokens = _tokens(members, skipped, (lengths - own).tolist())
    labels = np.empty_like(tokens)
    labels[:-1], labels[ends - 1] = tokens[1:], 0
    is_padding = np.zeros(num_tokens, np.bool_)
    for first, end in zip((starts + own).tolist(), ends.tolist(), strict=True) if (lengths > own).any() else ():
        is_padding[first:end] = True
    is_learnt = np.zeros(num_tokens, np.bool_)
    for sample, where in zip(members, predicting, strict=True):
        is_learnt[where] = sample.loss_mask
    mask = is_learnt.astype(np.float32)
    weights = np.repeat(np.asarray([weight_of[i] for i in content], np.float32), lengths)
    weights *= mask
    is_masked = ~is_learnt if num_predicting.sum() > np.count_nonzero(is_learnt) else None
    return MicroBatch(
        tokens=tokens,
        labels=labels,
        position_ids=np.arange(num_tokens) - np.repeat(starts - skipped, lengths),
        cu_seqlens=np.concatenate([[0], ends]).astype(np.int32),
        is_padding=is_padding,
        loss_mask=mask,
        loss_weights=weights,
        sample_ids=tuple(content),
        prefixes=np.asarray(skipped) if any(skipped) else None,
        columns={name: _spread(name, members, predicting, is_masked, num_tokens) for name in samples[0].columns},
        attempt_sizes=tuple(len(unit.members) for unit in units) if shape.whole_attempts else None,
        recorded=_recorded(members, skipped, starts.tolist(), num_tokens),
    )


def shared_rows(cu_seqlens: Sequence[int], prefixes: Sequence[int]) -> list[tuple[range, ...]]:
    """The rows of the first tokens that each sequence lacks (`MicroBatch.prefixes`), in the tokens' order."""
    found, before = list[tuple[range, ...]](), tuple[range, ...]()
    for (start, end), count in zip(pairwise(cu_seqlens), prefixes, strict=True):
        stops = accumulate(map(len, before))
        room = [count - stop + len(rows) for rows, stop in zip(before, stops, strict=True)]
        found.append(tuple(rows[:most] for rows, most in zip(before, room, strict=True) if most > 0))
        before = (*found[-1], range(start, end))
    return found


def num_readers(micro: MicroBatch) -> np.ndarray:
    """[num_tokens] int64: of how many sequences each token is a part, 0 of padding."""
    found = (~micro.is_padding).astype(np.int64)
    prefixes = () if micro.prefixes is None else shared_rows(micro.cu_seqlens.tolist(), micro.prefixes.tolist())
    for rows in (rows for prefix in prefixes for rows in prefix):
        found[rows.start : rows.stop] += 1
    return found


def _tokens(members: Sequence[TrainSample], skipped: Sequence[int], paddings: Sequence[int]) -> np.ndarray:
    """Tokens that each sample has itself, and 0 as padding behind them."""
    nothing, parts = np.zeros(max(paddings), np.int64), []
    for sample, skip, padding in zip(members, skipped, paddings, strict=True):
        parts += [sample.tokens[skip:], nothing[:padding]] if padding else [sample.tokens[skip:]]
    return np.concatenate(parts, dtype=np.int64)


def _spread(
    name: str,
    members: Sequence[TrainSample],
    predicting: Sequence[slice],
    is_masked: np.ndarray | None,
    num_tokens: int,
) -> np.ndarray:
    """A column's values at the positions that predict their tokens.

    A masked token may hold anything: it gets 0, because infinity times a mask of zero is not zero.
    """
    spread = _blank(members[0].columns[name], num_tokens)
    for sample, where in zip(members, predicting, strict=True):
        spread[where] = sample.columns[name]
    if is_masked is not None:
        spread[is_masked] = 0
    return spread


def _blank(column: np.ndarray, num_tokens: int) -> np.ndarray:
    """Room for a column of a whole micro-batch, filled with 0."""
    dtype = np.int32 if np.issubdtype(column.dtype, np.integer) else np.float32
    return np.zeros((num_tokens, *column.shape[1:]), dtype)


def _recorded(
    members: Sequence[TrainSample], skipped: Sequence[int], starts: Sequence[int], num_tokens: int
) -> dict[str, np.ndarray]:
    """Records of engines, at the tokens that they are about."""
    kinds = {name: rows for sample in members for name, rows in sample.recorded.items()}
    found = {name: np.zeros((num_tokens, *rows.shape[1:]), rows.dtype) for name, rows in kinds.items()}
    for sample, skip, start in zip(members, skipped, starts, strict=True) if kinds else ():
        for name, rows in sample.recorded.items():
            own = rows[skip:]
            found[name][start : start + len(own)] = own
    return found


def _empty(shape: Shape, columns: Mapping[str, np.ndarray]) -> MicroBatch:
    """Padding alone: keeps a rank in step with the others when there are fewer sequences than micro-batches."""
    align = shape.align
    zeros, nothing = np.zeros(align, np.int64), np.zeros(align, np.float32)
    return MicroBatch(
        tokens=zeros,
        labels=zeros,
        position_ids=np.arange(align),
        cu_seqlens=np.array([0, align], np.int32),
        is_padding=np.ones(align, np.bool_),
        loss_mask=nothing,
        loss_weights=nothing,
        sample_ids=(),
        columns={name: _blank(column, align) for name, column in columns.items()},
        attempt_sizes=(1,) if shape.whole_attempts else None,
    )


def pack_for(
    cfg: SlimeConfig, layout: RankLayout, samples: Sequence[TrainSample], num_steps: int, *, whole_attempts: bool
) -> list[Batch]:
    """Micro-batches of every rank of a layout, for `num_steps` optimizer steps; `whole_attempts` as of `pack`."""
    return pack(
        samples,
        num_dp=layout.data_parallel_size,
        align=layout.packing_align,
        max_tokens=cfg.train.max_tokens_per_micro_batch,
        loss_mean=cfg.algo.loss_mean,
        max_response_tokens=cfg.rollout.sampling.max_response_tokens,
        num_optimizer_steps=num_steps,
        micro_batch_multiple=layout.micro_batch_multiple,
        share_below=layout.share_below,
        attention=layout.attention,
        whole_attempts=whole_attempts,
        lookahead=layout.lookahead,
    )
