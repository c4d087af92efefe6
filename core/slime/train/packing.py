"""From a list of sequences to packed micro-batches for every rank, with the loss denominators computed beforehand.

Nothing here depends on chance: the same samples give the same packs. No torch.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from slime.config.schema import LossMean, SlimeConfig
from slime.errors import SlimeError
from slime.types import Batch, MicroBatch, TrainSample

if TYPE_CHECKING:
    from slime.cluster.actors import RankLayout

Bins = list[list[int]]
"""Numbers of units by micro-batch."""

Unit = list[int]
"""Samples that stay together, because all but the first lack the tokens that they share with it; or one."""


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
    share_prompts: bool = False,
) -> list[Batch]:
    """Split samples into optimizer steps and pack each step's sequences into micro-batches.

    Args:
        samples: of one rollout, groups next to one another; step i trains on the i-th of `num_optimizer_steps` parts.
        num_dp: data-parallel ranks; each gets the same number of micro-batches and nearly the same tokens.
        align: every sequence is padded to a multiple of this many tokens.
        max_tokens: no micro-batch is longer, padding included.
        loss_mean: what the sum of weighted token losses over a whole step amounts to.
        max_response_tokens: what `LossMean.constant` divides by, beside the number of samples; demonstrations, which
            have no advantages, have no such length either and get `LossMean.token`.
        micro_batch_multiple: the number of micro-batches a rank is a multiple of this (interleaved pipelines).
        share_prompts: samples next to one another that have the same prompt share it, see `MicroBatch.prefixes`.

    Raises:
        SlimeError: a sequence is longer than `max_tokens`, a log-prob is not finite, a step has no sample, or nothing
            to learn from.
    """
    lengths = [_padded(sample.num_tokens, align) for sample in samples]
    _check(samples, lengths, max_tokens, num_optimizer_steps)
    steps = np.array_split(np.arange(len(samples)), num_optimizer_steps)
    weigh = partial(_token_weights, loss_mean=loss_mean, max_response_tokens=max_response_tokens)
    build = partial(_batch, samples, align, num_dp, max_tokens, weigh, micro_batch_multiple, share_prompts)
    return [build(step.tolist()) for step in steps]


def _padded(num_tokens: int, align: int) -> int:
    return -(-num_tokens // align) * align


def _check(samples: Sequence[TrainSample], lengths: list[int], max_tokens: int, num_optimizer_steps: int) -> None:
    if len(samples) < num_optimizer_steps:
        raise SlimeError(
            f"{len(samples)} samples cannot make {num_optimizer_steps} optimizer steps",
            where="train.steps_per_rollout",
            todo="Lower it, or train on more samples a step.",
        )
    for index, (sample, length) in enumerate(zip(samples, lengths, strict=True)):
        assert sample.num_response_tokens < sample.num_tokens, f"sample {index} has no prompt token"
        if length > max_tokens:
            raise SlimeError(
                f"sample {index} has {sample.num_tokens} tokens ({length} padded), the cap is {max_tokens}",
                where="train.max_tokens_per_micro_batch",
                todo=f"Raise it to {length} or more, or lower the prompt and response limits.",
            )
        _check_logprobs(index, sample)


def _check_logprobs(index: int, sample: TrainSample) -> None:
    """JSON has no -inf: what an engine sends for it arrives as one or as NaN."""
    if sample.rollout_logprobs is None:
        return
    broken = np.flatnonzero(~np.isfinite(sample.rollout_logprobs) & (sample.loss_mask != 0))
    if len(broken):
        token = sample.tokens[sample.num_tokens - sample.num_response_tokens + broken[0]]
        value = sample.rollout_logprobs[broken[0]]
        raise SlimeError(
            f"the engine gave log-prob {value:g} to token {token}, which it had sampled itself",
            where=f"sample {index} of the rollout, response token {broken[0]}",
            todo="Its logits overflow or its sampler is broken: try another precision, attention_backend or "
            "sampling_backend in rollout.sglang.",
        )


def _batch(
    samples: Sequence[TrainSample],
    align: int,
    num_dp: int,
    max_tokens: int,
    weigh: Callable[[Sequence[TrainSample]], list[float]],
    multiple: int,
    share_prompts: bool,
    members: list[int],
) -> Batch:
    weights = weigh([samples[i] for i in members])
    weight_of = dict(zip(members, weights, strict=True))
    units = _units(samples, members, align, max_tokens, num_dp * multiple) if share_prompts else [[i] for i in members]
    bins = _fill([_length(samples, align, unit) for unit in units], max_tokens, num_dp, multiple)
    micro_batches = [_micro_batch(samples, weight_of, align, [units[i] for i in content]) for content in bins]
    return Batch(
        # Bins come largest first, so dealing them out gives every rank a like share.
        micro_batches=tuple(tuple(micro_batches[rank::num_dp]) for rank in range(num_dp)),
        num_tokens=int(sum(np.count_nonzero(~micro.is_padding) for micro in micro_batches)),
        num_loss_tokens=int(sum(np.count_nonzero(samples[i].loss_mask) for i in members)),
    )


def _units(
    samples: Sequence[TrainSample], members: Sequence[int], align: int, max_tokens: int, num_bins: int
) -> list[Unit]:
    """Neighbours with one prompt, in parts that fit a micro-batch and leave every micro-batch of a step its share."""
    groups = [list(group) for _, group in groupby(members, lambda i: _prompt(samples[i]).tobytes())]
    fair = sum(_length(samples, align, group) for group in groups) / num_bins
    waiting, units = groups[::-1], []
    while waiting:
        unit = waiting.pop()
        if len(unit) > 1 and _length(samples, align, unit) > min(fair, max_tokens):
            waiting += [unit[len(unit) // 2 :], unit[: len(unit) // 2]]
        else:
            units.append(unit)
    return units


def _prompt(sample: TrainSample) -> np.ndarray:
    return sample.tokens[: sample.num_tokens - sample.num_response_tokens]


def _shared(samples: Sequence[TrainSample], unit: Unit) -> int:
    """Tokens that all but the first sample of a unit lack: not a prompt's last one, which predicts other labels in each
    of them."""
    return len(_prompt(samples[unit[0]])) - 1


def _length(samples: Sequence[TrainSample], align: int, unit: Unit) -> int:
    """Rows of a unit in its micro-batch."""
    first, *others = unit
    shared = _shared(samples, unit)
    own = sum(_padded(samples[i].num_tokens - shared, align) for i in others)
    return _padded(samples[first].num_tokens, align) + own


def _token_weights(samples: Sequence[TrainSample], loss_mean: LossMean, max_response_tokens: int | None) -> list[float]:
    """By sample, the factor of each of its token losses, so that a plain sum is the mean.

    A sample without loss tokens has no mean of its own and does not count, except in a constant.
    """
    counts = [int(np.count_nonzero(sample.loss_mask)) for sample in samples]
    if not any(counts):
        raise SlimeError(
            "no sample of this optimizer step has a token to learn from",
            where="loss masks",
            todo="Check the data and filters: every response is empty or masked.",
        )
    demonstrates = samples[0].advantages is None
    if loss_mean is LossMean.token or (loss_mean is LossMean.constant and demonstrates):
        return [1 / sum(counts)] * len(samples)
    if loss_mean is LossMean.constant:
        assert max_response_tokens, "the constant is a length times the number of samples"
        return [1 / (len(samples) * max_response_tokens)] * len(samples)
    num_counted = sum(count > 0 for count in counts)
    return [1 / (num_counted * count) if count else 0.0 for count in counts]


def _fill(lengths: Sequence[int], max_tokens: int, num_dp: int, multiple: int) -> Bins:
    """The fewest equal numbers of micro-batches a rank that hold everything, evenly filled, the fullest first."""
    unit = num_dp * multiple
    num_bins = math.ceil(max(1, sum(lengths) / max_tokens) / unit) * unit
    longest_first = sorted(range(len(lengths)), key=lambda i: (-lengths[i], i))
    while True:
        for strategy in (_into_emptiest, _into_first_that_fits):
            if bins := strategy(longest_first, lengths, max_tokens, num_bins):
                return sorted(bins, key=lambda content: -sum(lengths[i] for i in content))
        num_bins += unit


def _into_emptiest(order: list[int], lengths: Sequence[int], max_tokens: int, num_bins: int) -> Bins | None:
    """Longest processing time first (Graham 1969): the most even filling; None if something does not fit."""
    bins: Bins = [[] for _ in range(num_bins)]
    heap = [(0, number) for number in range(num_bins)]
    for i in order:
        filled, number = heap[0]
        if filled + lengths[i] > max_tokens:
            return None
        heapq.heapreplace(heap, (filled + lengths[i], number))
        bins[number].append(i)
    return bins


def _into_first_that_fits(order: list[int], lengths: Sequence[int], max_tokens: int, num_bins: int) -> Bins | None:
    """First fit decreasing: fills tightly where even filling runs over; None if something does not fit."""
    bins: Bins = [[] for _ in range(num_bins)]
    room = np.full(num_bins, max_tokens)
    for i in order:
        fits = np.flatnonzero(room >= lengths[i])
        if not len(fits):
            return None
        room[fits[0]] -= lengths[i]
        bins[fits[0]].append(i)
    return bins


def _micro_batch(
    samples: Sequence[TrainSample], weight_of: dict[int, float], align: int, units: list[Unit]
) -> MicroBatch:
    """Whole sequences stand in order of length: equal ones side by side let attention run on a view."""
    if not units:
        return _empty(align)
    content = [i for unit in units for i in unit]
    members = [samples[i] for i in content]
    skipped = [_shared(samples, unit) if number else 0 for unit in units for number in range(len(unit))]
    lengths = [_padded(sample.num_tokens - skip, align) for sample, skip in zip(members, skipped, strict=True)]
    ends = np.cumsum(lengths)
    mask = np.zeros(ends[-1], np.float32)
    weights, tokens, labels, positions = np.zeros_like(mask), *(np.zeros(ends[-1], np.int64) for _ in range(3))
    is_padding = np.ones(ends[-1], np.bool_)
    lasts = []
    for i, sample, skip, length, end in zip(content, members, skipped, lengths, ends.tolist(), strict=True):
        start = end - length
        last = start + sample.num_tokens - skip - 1
        tokens[start : last + 1], labels[start:last] = sample.tokens[skip:], sample.tokens[skip + 1 :]
        positions[start:end], is_padding[start : last + 1] = np.arange(skip, skip + length), False
        mask[_predicting(sample, last)] = sample.loss_mask != 0
        weights[_predicting(sample, last)] = weight_of[i] * (sample.loss_mask != 0)
        lasts.append(last)
    return MicroBatch(
        tokens=tokens,
        labels=labels,
        position_ids=positions,
        cu_seqlens=np.concatenate([[0], ends]).astype(np.int32),
        is_padding=is_padding,
        loss_mask=mask,
        loss_weights=weights,
        sample_ids=tuple(content),
        prefixes=_prefixes(units, skipped, ends - lengths) if any(skipped) else None,
        advantages=_spread([sample.advantages for sample in members], members, lasts, len(mask)),
        rollout_logprobs=_spread([_finite(sample.rollout_logprobs) for sample in members], members, lasts, len(mask)),
        is_current=_spread([sample.is_current for sample in members], members, lasts, len(mask)),
    )


def _prefixes(units: Sequence[Unit], skipped: Sequence[int], starts: np.ndarray) -> np.ndarray:
    """See `MicroBatch`: a unit's first sequence is whole, and begins with what the others lack."""
    sizes = [len(unit) for unit in units]
    firsts = np.cumsum([0, *sizes[:-1]])
    return np.stack([np.repeat(starts[firsts], sizes), skipped], axis=1)


def _predicting(sample: TrainSample, last: int) -> slice:
    """Positions that predict the response: the response itself, shifted by one, up to before the last token."""
    return slice(last - sample.num_response_tokens, last)


def _spread(
    values: Sequence[np.ndarray | None], members: Sequence[TrainSample], lasts: Sequence[int], num_tokens: int
) -> np.ndarray | None:
    """Per-response-token values at the positions that predict them; None if the samples carry none."""
    if all(value is None for value in values):
        return None
    spread = np.zeros(num_tokens, np.float32)
    for value, sample, last in zip(values, members, lasts, strict=True):
        assert value is not None, "either every sample carries this value or none"
        spread[_predicting(sample, last)] = value
    return spread


def _finite(values: np.ndarray | None) -> np.ndarray | None:
    """A masked token's value may be anything, and infinity times a mask of zero is not zero."""
    return values if values is None else np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def _empty(align: int) -> MicroBatch:
    """Padding alone: keeps a rank in step with the others when there are fewer sequences than micro-batches."""
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
        advantages=nothing,
        rollout_logprobs=nothing,
        is_current=nothing,
    )


def pack_for(cfg: SlimeConfig, layout: RankLayout, samples: Sequence[TrainSample], num_steps: int) -> list[Batch]:
    """Micro-batches of every rank of a layout, for `num_steps` optimizer steps."""
    return pack(
        samples,
        num_dp=layout.data_parallel_size,
        align=layout.packing_align,
        max_tokens=cfg.train.max_tokens_per_micro_batch,
        loss_mean=cfg.algo.loss_mean,
        max_response_tokens=cfg.rollout.sampling.max_response_tokens,
        num_optimizer_steps=num_steps,
        micro_batch_multiple=layout.micro_batch_multiple,
        share_prompts=layout.shares_prompts,
    )
