"""The divergence from a teacher of which the most probable tokens are known.

Shape letters: t places, k tokens of the teacher's at each.
"""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

LEAST_REST = 1e-6
"""Probability below which what lies outside the k tokens counts as this much: it is 1 minus a sum of fp32 numbers,
whose roundings add up to a few times 1e-7."""


class Divergence(NamedTuple):
    """[t] in nats, with the gradient of the student's log-probs; and the probability [t] that the student gives to all
    tokens beside the k, without gradient."""

    kl: Tensor
    rest: Tensor


def top_divergence(logprobs: Tensor, teacher: Tensor) -> Divergence:
    """The reverse divergence KL(pi, pi_teacher) of distributions over k tokens and one event, "any other token":

        sum over the k tokens v of pi(v) log(pi(v) / pi_teacher(v))  +  rest log(rest / rest_teacher)

    with rest = 1 - sum pi(v) ("Tail-Aware Top-k On-Policy Distillation", 2026, arXiv 2608.14728). To put
    events together never makes a divergence larger, so it is at most KL(pi, pi_teacher) over the vocabulary, and equal
    to it where the k tokens are the vocabulary. Both rests in the logarithm are at least `LEAST_REST`.

    Args:
        logprobs: [t, k] the student's, with gradient.
        teacher: [t, k] the teacher's, of the same tokens.
    """
    probs = logprobs.exp()
    rest, of_teacher = 1 - probs.sum(dim=1), 1 - teacher.exp().sum(dim=1)
    of_rest = rest * (rest.clamp(min=LEAST_REST).log() - of_teacher.clamp(min=LEAST_REST).log())
    kl = (probs * (logprobs - teacher)).sum(dim=1) + of_rest
    return Divergence(kl, rest.detach())
