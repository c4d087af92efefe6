"""From the contributions of all ranks' micro-batches to the numbers of one optimizer step, the same on every rank."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from slime.errors import SlimeError
from slime.train.objective import Contribution

SFT_MEANS = ("loss", "entropy")
RL_MEANS = ("loss", "pg_loss", "kl", "entropy")
RL_TOKEN_SUMS = ("clip_fraction", "ratio_mean", "approx_kl")
ENGINE_TOKEN_SUMS, ENGINE_MAXIMA = ("logprob_diff_mean", "current_share"), ("logprob_diff_max",)


def reduce_contributions(
    contributions: Sequence[Contribution],
    *,
    means: Sequence[str],
    token_sums: Sequence[str] = (),
    maxima: Sequence[str] = (),
    num_loss_tokens: int,
    gradients_are_finite: bool,
    step: int,
    device: torch.device,
) -> dict[str, float]:
    """Sum means, average token sums over all loss tokens, take maxima; over every rank, in float64.

    Raises:
        SlimeError: a loss or gradient is not finite, on every rank alike, naming the rank that had it.
    """
    mine = contributions if parallel_state.get_tensor_model_parallel_rank() == 0 else ()
    zero = torch.zeros((), dtype=torch.float64, device=device)
    sums = [sum((part.means[name].double() for part in mine), zero) for name in means]
    sums += [sum((part.token_sums[name].double() for part in mine), zero) / num_loss_tokens for name in token_sums]
    highest = [torch.stack([zero, *(part.maxima[name].double() for part in mine)]).max() for name in maxima]
    total, peak = torch.stack(sums), torch.stack([*highest, zero + _culprit(sums, gradients_are_finite)])
    dist.all_reduce(total)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    values: list[float] = total.tolist()
    *peaks, culprit = peak.tolist()
    if culprit:
        raise SlimeError(
            f"loss {values[0]:g} or a gradient is not finite",
            where=f"optimizer step {step}, trainer rank {int(culprit) - 1}",
            todo="The weights are untouched; lower the learning rate or look at that step's samples.",
        )
    return _over_current(dict(zip([*means, *token_sums, *maxima], [*values, *peaks], strict=True)))


def _over_current(values: dict[str, float]) -> dict[str, float]:
    """The engine's difference as a mean over the tokens it was measured on: those of the current weights."""
    if share := values.get("current_share"):
        values["logprob_diff_mean"] /= share
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
    how |= {"num_tokens": sum} | dict.fromkeys(ENGINE_MAXIMA, max)
    return {name: float(how[name]([values[name] for values in steps if name in values])) for name in names}
