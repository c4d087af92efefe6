"""From the contributions of all ranks' micro-batches to the numbers of one optimizer step, the same on every rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from slime.errors import SlimeError
from slime.train.objective import Contribution

SFT_MEANS = ("loss", "entropy")
RL_MEANS = ("loss", "pg_loss")
RL_TOKEN_SUMS = ("entropy", "clip_fraction", "clip_low_fraction", "clip_high_fraction", "ratio_mean", "approx_kl")
REFERENCE_TOKEN_SUMS = ("kl",)
ENGINE_TOKEN_SUMS = ("logprob_diff_mean", "engine_kl", "current_share", "stale_share")
ENGINE_MAXIMA = ("logprob_diff_max",)
IMPORTANCE_TOKEN_SUMS, IMPORTANCE_MAXIMA = ("importance_ratio_mean", "corrected_share"), ("importance_ratio_max",)

_OVER = {
    "logprob_diff_mean": "current_share",
    "logprob_diff_max": "current_share",
    "engine_kl": "current_share",
    "importance_ratio_mean": "corrected_share",
    "importance_ratio_max": "corrected_share",
}
"""What is measured on some of the loss tokens -> the share of these."""


def reduce_contributions(
    contributions: Sequence[Contribution],
    *,
    means: Sequence[str],
    token_sums: Sequence[str] = (),
    maxima: Sequence[str] = (),
    layer_losses: Mapping[str, torch.Tensor],
    num_loss_tokens: int,
    gradients_are_finite: bool,
    step: int,
    device: torch.device,
) -> dict[str, float]:
    """Sum means, average token sums over the loss tokens, take maxima; over every rank, in float64.

    What no token was measured for is left out.

    Args:
        layer_losses: this rank's parts of means, by name.

    Raises:
        SlimeError: a metric or gradient is not finite, on every rank alike, naming the metrics and the rank.
    """
    mine = contributions if parallel_state.get_tensor_model_parallel_rank() == 0 else ()
    zero = torch.zeros((), dtype=torch.float64, device=device)
    sums = [sum((part.means[name].double() for part in mine), zero) for name in means]
    sums += [sum((part.token_sums[name].double() for part in mine), zero) / num_loss_tokens for name in token_sums]
    sums += layer_losses.values()
    highest = [torch.stack([zero, *(part.maxima[name].double() for part in mine)]).max() for name in maxima]
    total, peak = torch.stack(sums), torch.stack([*highest, zero + _culprit(sums, gradients_are_finite)])
    dist.all_reduce(total)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    *peaks, culprit = peak.tolist()
    values = dict(zip([*means, *token_sums, *layer_losses, *maxima], [*total.tolist(), *peaks], strict=True))
    if culprit:
        broken = ", ".join(f"{name} = {value:g}" for name, value in values.items() if not math.isfinite(value))
        raise SlimeError(
            f"not finite: {broken or 'a gradient'}",
            where=f"optimizer step {step}, trainer rank {int(culprit) - 1}",
            todo="The weights are untouched; lower the learning rate or look at that step's samples.",
        )
    return _over_their_tokens(values)


def _over_their_tokens(values: dict[str, float]) -> dict[str, float]:
    """Means over the tokens that each number was measured on, instead of all loss tokens; without these shares."""
    shares = {name: values.pop(name) for name in {*_OVER.values()} & values.keys()}
    for name in _OVER.keys() & values.keys():
        if not shares[_OVER[name]]:
            del values[name]
        elif not name.endswith("_max"):
            values[name] /= shares[_OVER[name]]
    return values


def _culprit(sums: list[torch.Tensor], gradients_are_finite: bool) -> int:
    """This rank's number plus one if it has something that is not finite, else 0."""
    is_finite = gradients_are_finite and bool(torch.stack(sums).isfinite().all())
    return 0 if is_finite else dist.get_rank() + 1


def combine(steps: Sequence[dict[str, float]]) -> dict[str, float]:
    """One rollout's numbers from its optimizer steps': token counts add up, maxima stay maxima, the rest are means.

    A number that only some steps measured is the mean over these.
    """
    names = dict.fromkeys(name for values in steps for name in values)
    how: dict[str, Callable[[list[float]], float]] = dict.fromkeys(names, statistics.fmean)
    how |= {"num_tokens": sum} | dict.fromkeys(ENGINE_MAXIMA + IMPORTANCE_MAXIMA, max)
    return {name: float(how[name]([values[name] for values in steps if name in values])) for name in names}
