"""What explanations of a gap between engine and trainer share (`slime.contracts.Explanation`): which samples they score
again, and means over all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from slime.types import IS_CURRENT, ROLLOUT_LOGPROBS
from slime_megatron.train.local_batch import LocalMicroBatch

_TOKENS = 2**15
"""That a rank scores: enough for means, few beside a step of a large run."""
Scores = Sequence[Tensor]
"""By micro-batch, [rows, t] with log-probs in the first row (`slime_megatron.train.step.score`)."""


def few(micro_batches: Sequence[LocalMicroBatch], max_tokens: int, multiple: int) -> Sequence[LocalMicroBatch]:
    """The first ones, as many on every rank: a multiple of `multiple`, if they are full of about `_TOKENS`.

    Args:
        max_tokens: of a micro-batch.
    """
    return micro_batches[: max(1, _TOKENS // (multiple * max_tokens)) * multiple]


def of_engine(micro_batches: Sequence[LocalMicroBatch]) -> Scores:
    """Its log-probs, in the form of scores."""
    return [micro.columns[ROLLOUT_LOGPROBS][None] for micro in micro_batches]


def means(causes: Mapping[str, tuple[Scores, Scores]], micro_batches: Sequence[LocalMicroBatch]) -> dict[str, float]:
    """Mean absolute differences of log-probs by cause, over the loss tokens that the current weights generated, of all
    ranks, in float64; collective.

    Returns:
        gap/<cause> in nats a token, and gap/num_tokens, of which these are means; empty if there is no such token.
    """
    sums = torch.zeros(len(causes) + 1, dtype=torch.float64, device=micro_batches[0].tokens.device)
    num_scored = min(len(scores) for pair in causes.values() for scores in pair)  # 0 but on the last pipeline stage
    if parallel_state.get_tensor_model_parallel_rank() == 0:
        for number, micro in enumerate(micro_batches[:num_scored]):
            current = micro.loss_mask * micro.columns.get(IS_CURRENT, 1.0)
            apart = [(ones[number][0] - others[number][0]).abs() * current for ones, others in causes.values()]
            sums += torch.stack([*apart, current]).double().sum(-1)
    dist.all_reduce(sums)
    *totals, num_tokens = sums.tolist()
    if not num_tokens:
        return {}
    found = {f"gap/{name}": total / num_tokens for name, total in zip(causes, totals, strict=True)}
    return found | {"gap/num_tokens": num_tokens}
