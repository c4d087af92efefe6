"""Log-probs and entropies among some tokens of the vocabulary. Shape letters: t tokens, k of the vocabulary at each."""

from __future__ import annotations

import torch
from torch import Tensor


def renormalised(scores: Tensor, is_kept: Tensor) -> Tensor:
    """Log-probs and entropies under the distribution that has some tokens alone, in nats, with gradient.

    With M the kept tokens of a place: log q(y) = log p(y) - log sum_M p(j), and H = -sum_M q(j) log q(j).

    Args:
        scores: [2 + k, t] of `logprobs_and_entropy` with `others`, the tokens that may be kept.
        is_kept: [k, t]; of one that is not, -1 stood there. Where a place keeps none, it keeps all of the vocabulary.

    Returns:
        [2, t].
    """
    is_narrow = is_kept.any(dim=0)
    left_out = ~is_kept & is_narrow
    logprobs = scores[2:].masked_fill(left_out, -torch.inf)
    log_mass = logprobs.logsumexp(dim=0)
    log_q = logprobs - log_mass
    entropy = -(log_q.exp() * log_q.masked_fill(left_out, 0.0)).sum(dim=0)
    return scores[:2].where(~is_narrow, torch.stack([scores[0] - log_mass, entropy]))
