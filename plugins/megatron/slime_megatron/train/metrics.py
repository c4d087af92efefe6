"""From what all ranks' micro-batches add to the numbers of one optimizer step, the same on every rank."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from slime.errors import SlimeError
from slime.objective import LossTerms, Metrics


def reduce_terms(
    terms: Sequence[LossTerms],
    names: Metrics,
    *,
    layer_losses: Mapping[str, torch.Tensor],
    num_loss_tokens: int,
    gradients_are_finite: bool,
    where: str,
    device: torch.device,
) -> dict[str, float]:
    """Sum means, average token sums over the loss tokens, take maxima; over every rank, in float64. What no token was
    measured for is left out.

    Args:
        terms: of this rank's micro-batches; none on a pipeline stage other than the last.
        layer_losses: this rank's parts of means, by name.

    Raises:
        SlimeError: a metric or gradient is not finite, on every rank alike, naming the metrics and the rank.
    """
    mine = terms if parallel_state.get_tensor_model_parallel_rank() == 0 else ()
    zero = torch.zeros((), dtype=torch.float64, device=device)
    sums = [sum((part.means[name].double() for part in mine), zero) for name in names.means]
    counted = [sum((part.token_sums[name].double() for part in mine), zero) for name in names.token_sums]
    sums += [value / num_loss_tokens for value in counted]
    sums += layer_losses.values()
    highest = [torch.stack([zero, *(part.maxima[name].double() for part in mine)]).max() for name in names.maxima]
    total, peak = torch.stack(sums), torch.stack([*highest, zero + _culprit(sums, gradients_are_finite)])
    dist.all_reduce(total)
    dist.all_reduce(peak, dist.ReduceOp.MAX)
    *peaks, culprit = peak.tolist()
    order = [*names.means, *names.token_sums, *layer_losses, *names.maxima]
    values = dict(zip(order, [*total.tolist(), *peaks], strict=True))
    if culprit:
        broken = ", ".join(f"{name} = {value:g}" for name, value in values.items() if not math.isfinite(value))
        raise SlimeError(
            f"not finite: {broken or 'a gradient'}",
            where=f"{where}, trainer rank {int(culprit) - 1}",
            todo="The weights are untouched; lower the learning rate or look at that step's samples.",
        )
    return _over_their_tokens(values, names)


def _over_their_tokens(values: dict[str, float], names: Metrics) -> dict[str, float]:
    """Means over the tokens that each number was measured on, instead of all loss tokens; without these shares."""
    shares = {name: values.pop(name) for name in {*names.measured_on.values()} & values.keys()}
    for name in names.measured_on.keys() & values.keys():
        if not (share := shares[names.measured_on[name]]):
            del values[name]
        elif name in names.token_sums:
            values[name] /= share
    return values


def _culprit(sums: list[torch.Tensor], gradients_are_finite: bool) -> int:
    """This rank's number plus one if it has something that is not finite, else 0."""
    is_finite = gradients_are_finite and bool(torch.stack(sums).isfinite().all())
    return 0 if is_finite else dist.get_rank() + 1


def combine(steps: Sequence[dict[str, float]], maxima: Collection[str]) -> dict[str, float]:
    """One rollout's numbers from its optimizer steps': token counts add up, maxima stay maxima, the rest are means.

    A number that only some steps measured is the mean over these.
    """
    names = dict.fromkeys(name for values in steps for name in values)
    how: dict[str, Callable[[list[float]], float]] = dict.fromkeys(names, statistics.fmean)
    how |= {"num_tokens": sum} | dict.fromkeys(maxima, max)
    return {name: float(how[name]([values[name] for values in steps if name in values])) for name in names}
