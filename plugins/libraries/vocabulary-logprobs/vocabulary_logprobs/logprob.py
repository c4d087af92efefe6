"""Log-probability and entropy of next tokens from hidden states, in chunks, over a sharded vocabulary.

Shape letters: t tokens, c tokens of a chunk, h hidden size, v vocabulary entries of this tensor-parallel rank, k
further tokens, or most probable ones, of each place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_core_portable import add_product

MOST_AT_ONCE = 1 << 25
"""Logits of a chunk among which the largest are found at a time, with 10 bytes of memory each."""


def logprobs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    chunk_tokens: int,
    entropy_gradient: bool,
    group: dist.ProcessGroup,
    kernels: VocabularyKernels,
    temperature: float = 1.0,
    main_grad: Tensor | None = None,
    others: Tensor | None = None,
    fp32_logits: bool = False,
) -> Tensor:
    """log p(label) and the entropy of p = softmax(hidden @ weight.T / temperature), in nats.

    Logits exist for `chunk_tokens` tokens at a time. The backward pass computes them again, but for the last chunk's.
    Everything behind the product is fp32, and so are the logits where `fp32_logits` says so; otherwise they are rounded
    to the model's precision.

    Args:
        hidden: [t, h], the same on every rank of `group`; its gradient is this rank's part of a sum over `group`.
        weight: [v, h], consecutive rows of the output embedding by rank of `group`.
        labels: [t] int64, indices into the whole vocabulary.
        entropy_gradient: the entropy is part of a loss; otherwise its gradient is not computed.
        group: the tensor-parallel group.
        main_grad: [v, h] fp32, Megatron's gradient buffer of `weight`, to which the gradient is added at once; the
            gradient that autograd then gets is a placeholder, and `weight.grad_added_to_main_grad` says so.
        others: [k, t] int64, further tokens whose log-probs are wanted. Those of a place differ from one another,
            unless their gradients are 0; the label may be among them. -1: none, whose number says nothing.
        fp32_logits: products of bf16 or fp16 values are exact in fp32; they are summed in it, and their sums are not
            rounded again. Only the gradient of the logits is rounded to the model's precision, before its two products.

    Returns:
        [2 + k, t] fp32 (float64 for float64 inputs): log-probs, entropies, and log-probs of the other tokens.
    """
    options = _Options(chunk_tokens, entropy_gradient, group, kernels, temperature, main_grad, fp32_logits)
    asked = labels[None] if others is None else torch.cat([labels[None], others])
    result: Tensor = _LogprobsAndEntropy.apply(hidden, weight, asked, options)  # type: ignore[no-untyped-call]
    return result


@torch.no_grad()
def top_logprobs(
    hidden: Tensor,
    weight: Tensor,
    k: int,
    *,
    chunk_tokens: int,
    group: dist.ProcessGroup,
    kernels: VocabularyKernels,
    temperature: float = 1.0,
    fp32_logits: bool = False,
) -> tuple[Tensor, Tensor]:
    """The k most probable next tokens, the same on every rank of `group`; of equal logits the token with the lower id.

    Args:
        k: at most the whole vocabulary. All else as of `logprobs_and_entropy`.

    Returns:
        [t, k] int64 ids, ascending, and [t, k] fp32 (float64 for float64 inputs) log-probs.
    """
    options = _Options(chunk_tokens, False, group, kernels, temperature, None, fp32_logits)
    assert 0 < k <= group.size() * weight.size(0), "there are not as many tokens"
    found = [_top(_logits(rows, weight, options), k, options) for rows in torch.split(hidden, chunk_tokens)]
    ids, logprobs = zip(*found, strict=True)
    return torch.cat(ids), torch.cat(logprobs)


class VocabularyKernels(Protocol):
    """The two passes over a chunk of logits, which `PlainKernels` documents and defines."""

    @property
    def statistics(self) -> Callable[[Tensor, Tensor, float], Tensor]: ...
    @property
    def to_gradient(self) -> Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None, float], Tensor]: ...


class PlainKernels:
    """Kernels in plain torch operations: exact, but with several fp32 tensors as large as the chunk of logits."""

    def statistics(self, logits: Tensor, local_labels: Tensor, temperature: float) -> Tensor:
        """[4, c] of x = logits [c, v] / temperature: maximum m, sum(exp z), sum(z exp z) with z = x - m, the label's x.

        A label that another rank holds (outside 0..v-1) counts 0.
        """
        logits = logits.to(_compute_dtype(logits)) / temperature
        [label_logit] = _at_several(logits, local_labels[None], 1.0)
        peak = logits.amax(dim=1)
        z = logits - peak[:, None]
        exponentials = z.exp()
        return torch.stack([peak, exponentials.sum(dim=1), exponentials.mul_(z).sum(dim=1), label_logit])

    def to_gradient(
        self,
        logits: Tensor,
        local_labels: Tensor,
        log_z: Tensor,
        entropy: Tensor,
        grad_logprob: Tensor,
        grad_entropy: Tensor | None,
        temperature: float,
    ) -> Tensor:
        """The gradient of logits [c, v], in their dtype; may overwrite them. The other tensors are [c].

        With x = logits / temperature and log p = x - log Z: d log p_y / d x_j = [j = y] - p_j and
        dH / d x_j = -p_j (log p_j + H).
        """
        log_p = logits.to(_compute_dtype(logits)) / temperature - log_z[:, None]
        factor = grad_logprob[:, None]
        if grad_entropy is not None:
            factor = factor + grad_entropy[:, None] * (log_p + entropy[:, None])
        gradient = log_p.exp_().mul_(factor).neg_()
        label_gradient = grad_logprob * _is_local(local_labels, logits.size(1))
        gradient.scatter_add_(1, local_labels.clamp(0, logits.size(1) - 1)[:, None], label_gradient[:, None])
        return gradient.div_(temperature).to(logits.dtype)


def vocabulary_kernels(device: torch.device) -> VocabularyKernels:
    """The best kernels for a device."""
    if device.type == "cpu":
        return PlainKernels()
    from vocabulary_logprobs import kernels as vocabulary

    return vocabulary


@dataclass(frozen=True)
class _Options:
    chunk_tokens: int
    entropy_gradient: bool
    group: dist.ProcessGroup
    kernels: VocabularyKernels
    temperature: float
    main_grad: Tensor | None
    fp32_logits: bool


class _LogprobsAndEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, asked: Tensor, options: _Options) -> Tensor:
        local = asked - options.group.rank() * weight.size(0)
        found = []
        for rows in _chunks(len(hidden), options.chunk_tokens):
            logits = None  # those of the chunk before are gone when the next ones are made
            logits = _logits(hidden[rows], weight, options)
            found.append(_scores(logits, local[:, rows], options))
        scores, log_z = (torch.cat(each, dim=-1) for each in zip(*found, strict=True))
        ctx.save_for_backward(hidden, weight, local, log_z, scores[1].clone())
        ctx.options, ctx.logits_of_last = options, logits
        return scores

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, weight, local, log_z, entropy = ctx.saved_tensors
        options: _Options = ctx.options
        grad_logprob, grad_entropy, *_ = gradient = grads[0].contiguous()
        grad_hidden = torch.empty_like(hidden)
        total = options.main_grad
        if total is None and ctx.needs_input_grad[1]:
            total = torch.zeros_like(weight, dtype=_compute_dtype(weight))
        kept, ctx.logits_of_last = ctx.logits_of_last, None  # the gradient is written over them
        for rows in reversed(_chunks(len(hidden), options.chunk_tokens)):
            grad_of_entropy = grad_entropy[rows] if options.entropy_gradient else None
            logits, kept = _logits(hidden[rows], weight, options) if kept is None else kept, None
            if len(local) == 1:
                of_rows = (local[0, rows], log_z[rows], entropy[rows], grad_logprob[rows])
                grad_logits = options.kernels.to_gradient(logits, *of_rows, grad_of_entropy, options.temperature)
            else:
                of_asked = torch.cat([grad_logprob[None, rows], gradient[2:, rows]])
                of_rows = (local[:, rows], log_z[rows], entropy[rows], of_asked)
                grad_logits = _to_gradient_of_several(logits, *of_rows, grad_of_entropy, options)
            grad_logits = grad_logits.to(weight.dtype)
            torch.mm(grad_logits, weight, out=grad_hidden[rows])
            if total is not None:
                add_product(total, grad_logits.t(), hidden[rows])
            del logits, grad_logits  # before the next chunk's are made
        if options.main_grad is None:
            return grad_hidden, None if total is None else total.to(weight.dtype), None, None
        weight.grad_added_to_main_grad = True
        # DDP wants to see some gradient before it reduces the buffer; this one costs no memory and is never read.
        return grad_hidden, weight.detach(), None, None


def _chunks(num_tokens: int, chunk_tokens: int) -> list[slice]:
    """Consecutive slices of `chunk_tokens` tokens each; the first one is shorter if there is a remainder."""
    first = num_tokens % chunk_tokens
    borders = [*([0] if first else []), *range(first, num_tokens + 1, chunk_tokens)]
    return [slice(*both) for both in pairwise(borders)]


def _logits(hidden: Tensor, weight: Tensor, options: _Options) -> Tensor:
    """[c, v] of hidden [c, h]."""
    if not options.fp32_logits or weight.dtype == _compute_dtype(weight):
        return torch.mm(hidden, weight.t())
    if hidden.is_cuda:
        return torch.mm(hidden, weight.t(), out_dtype=torch.float32)
    return torch.mm(hidden.float(), weight.float().t())


def _scores(logits: Tensor, local: Tensor, options: _Options) -> tuple[Tensor, Tensor]:
    """[2 + k, c] log-probs, entropies and log-probs of k other tokens, and [c] log Z; local: [1 + k, c]."""
    logprob, entropy, log_z = _score(logits, local[0], options)
    if len(local) == 1:
        return torch.stack([logprob, entropy]), log_z
    others = _at_several(logits, local[1:], options.temperature)
    if options.group.size() > 1:
        dist.all_reduce(others, group=options.group)
    return torch.cat([logprob[None], entropy[None], others - log_z]), log_z


def _to_gradient_of_several(
    logits: Tensor,
    local: Tensor,
    log_z: Tensor,
    entropy: Tensor,
    gradient: Tensor,
    grad_entropy: Tensor | None,
    options: _Options,
) -> Tensor:
    """`VocabularyKernels.to_gradient` of log-probs of 1 + k tokens: local and gradient are [1 + k, c].

    The kernels know one label. They are given the sum of all gradients, which is right everywhere but at these tokens;
    there the gradient is computed here, in fp32, and put in its place.
    """
    at, total = _at_several(logits, local, options.temperature), gradient.sum(dim=0)
    log_p = at - log_z
    factor = total if grad_entropy is None else total + grad_entropy * (log_p + entropy)
    own, is_label = gradient.clone(), local[1:] == local[0]
    own[0] += (gradient[1:] * is_label).sum(dim=0)
    own[1:] += gradient[0] * is_label
    values = (own - factor * log_p.exp()) / options.temperature
    found = options.kernels.to_gradient(logits, local[0], log_z, entropy, total, grad_entropy, options.temperature)
    number, row = _is_local(local, logits.size(1)).nonzero(as_tuple=True)
    found[row, local[number, row]] = values[number, row].to(found.dtype)
    return found


def _top(logits: Tensor, k: int, options: _Options) -> tuple[Tensor, Tensor]:
    group, size = options.group, logits.size(1)
    log_z = _score(logits, torch.zeros_like(logits[:, 0], dtype=torch.int64), options)[2]
    ids = _largest(logits, min(k, size))
    values = logits.gather(1, ids)
    ids += group.rank() * size
    if group.size() > 1:
        values, ids = (_gathered(each, group) for each in (values, ids))
        places = _largest(values, k)
        values, ids = values.gather(1, places), ids.gather(1, places)
    return ids, values.to(_compute_dtype(values)) / options.temperature - log_z[:, None]


def _gathered(rows: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[c, n] of every rank side by side, in their order."""
    parts = [torch.empty_like(rows) for _ in range(group.size())]
    dist.all_gather(parts, rows.contiguous(), group=group)
    return torch.cat(parts, dim=1)


def _largest(values: Tensor, k: int) -> Tensor:
    """[c, k] ascending places of the k largest of [c, n]; of equal ones the first. `topk` alone takes any of them."""
    blocks = torch.split(values, max(1, MOST_AT_ONCE // values.size(1)))
    return torch.cat([_largest_of_block(block, k) for block in blocks])


def _largest_of_block(values: Tensor, k: int) -> Tensor:
    least = values.topk(k, dim=1).values[:, -1:]
    above, equal = values > least, values == least
    room = k - above.sum(dim=1, keepdim=True)
    found = (above | (equal & (equal.cumsum(dim=1, dtype=torch.int32) <= room))).nonzero()[:, 1]
    if len(found) != len(values) * k:  # NaN has no order, and what is computed of it is NaN
        found = values.topk(k, dim=1).indices.sort(dim=1).values
    return found.view(len(values), k)


def _score(logits: Tensor, local_labels: Tensor, options: _Options) -> Tensor:
    """[3, c]: log-prob, entropy, log of the partition function of x = logits [c, v] / temperature.

    With z = x - max: H = log Z - E[z], where Z = sum(exp z) and E[z] = sum(z exp z) / Z.
    """
    peak, total, weighted, label_logit = options.kernels.statistics(logits, local_labels, options.temperature)
    if options.group.size() > 1:
        own_peak, peak = peak, peak.clone()
        dist.all_reduce(peak, dist.ReduceOp.MAX, group=options.group)
        shift = own_peak - peak
        sums = torch.stack([total * shift.exp(), (weighted + shift * total) * shift.exp(), label_logit])
        dist.all_reduce(sums, group=options.group)
        total, weighted, label_logit = sums
    log_total = total.log()
    return torch.stack([label_logit - peak - log_total, log_total - weighted / total, log_total + peak])


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _is_local(local_labels: Tensor, num_local: int) -> Tensor:
    return (local_labels >= 0) & (local_labels < num_local)


def _at_several(logits: Tensor, local: Tensor, temperature: float) -> Tensor:
    """[n, c] of x = logits / temperature: those of tokens [n, c] on the rank that holds them, 0 elsewhere."""
    picked = logits.gather(1, local.clamp(0, logits.size(1) - 1).t()).t()
    return picked.to(_compute_dtype(logits)) / temperature * _is_local(local, logits.size(1))
