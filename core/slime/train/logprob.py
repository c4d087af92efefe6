"""Log-probability and entropy of next tokens from hidden states, in chunks, over a sharded vocabulary.

Shape letters: t tokens, c tokens of a chunk, h hidden size, v vocabulary entries of this tensor-parallel rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def logprobs_and_entropy(
    hidden: Tensor,
    weight: Tensor,
    labels: Tensor,
    *,
    chunk_tokens: int,
    entropy_gradient: bool,
    group: dist.ProcessGroup,
) -> Tensor:
    """log p(label) and the entropy of p = softmax(hidden @ weight.T), in nats.

    Logits exist in fp32 for `chunk_tokens` tokens at a time, in the backward pass (which computes them again) too.

    Args:
        hidden: [t, h], the same on every rank of `group`; its gradient is this rank's part of a sum over `group`.
        weight: [v, h], consecutive rows of the output embedding by rank of `group`.
        labels: [t] int64, indices into the whole vocabulary.
        entropy_gradient: whether the entropy is part of a loss; otherwise its gradient is not computed.
        group: the tensor-parallel group.

    Returns:
        [2, t] fp32 (float64 for float64 inputs): log-probs and entropies.
    """
    result: Tensor = _LogprobsAndEntropy.apply(  # type: ignore[no-untyped-call]
        hidden, weight, labels, chunk_tokens, entropy_gradient, group
    )
    return result


class _LogprobsAndEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        labels: Tensor,
        chunk_tokens: int,
        entropy_gradient: bool,
        group: dist.ProcessGroup,
    ) -> Tensor:
        first = group.rank() * weight.size(0)
        chunks = [
            _forward_chunk(rows, weight, label - first, group)
            for rows, label in zip(torch.split(hidden, chunk_tokens), torch.split(labels, chunk_tokens), strict=True)
        ]
        logprob, entropy, log_z = torch.cat(chunks, dim=1)
        ctx.save_for_backward(hidden, weight, labels - first, log_z, entropy)
        ctx.chunk_tokens, ctx.entropy_gradient = chunk_tokens, entropy_gradient
        return torch.stack([logprob, entropy])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None, None, None]:
        hidden, weight, local_labels, log_z, entropy = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=_compute_dtype(weight))
        for start in range(0, len(hidden), ctx.chunk_tokens):
            rows = slice(start, start + ctx.chunk_tokens)
            grad_entropy = grads[0][1, rows] if ctx.entropy_gradient else None
            grad_logits = _logits(hidden[rows], weight).sub_(log_z[rows, None])
            _to_grad_logits(grad_logits, local_labels[rows], grads[0][0, rows], grad_entropy, entropy[rows])
            grad_logits = grad_logits.to(weight.dtype)
            torch.mm(grad_logits, weight, out=grad_hidden[rows])
            _add_product(grad_weight, grad_logits.t(), hidden[rows])
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None, None


def _compute_dtype(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _logits(hidden: Tensor, weight: Tensor) -> Tensor:
    """[c, v] in fp32; the product itself runs in the model's precision, as the engine's does."""
    return torch.mm(hidden, weight.t()).to(_compute_dtype(weight))


def _forward_chunk(hidden: Tensor, weight: Tensor, local_labels: Tensor, group: dist.ProcessGroup) -> Tensor:
    """[3, c]: log-prob, entropy, log of the partition function.

    With z = logits - max: H = log Z - E[z], where Z = sum(exp z) and E[z] = sum(z exp z) / Z.
    """
    logits = _logits(hidden, weight)
    peak = _all_reduce(logits.amax(dim=1), dist.ReduceOp.MAX, group)
    logits.sub_(peak[:, None])
    label_logit = _at_labels(logits, local_labels)
    exponentials = logits.exp()
    total, weighted = exponentials.sum(dim=1), exponentials.mul_(logits).sum(dim=1)
    total, weighted, label_logit = _all_reduce(torch.stack([total, weighted, label_logit]), dist.ReduceOp.SUM, group)
    log_total = total.log()
    return torch.stack([label_logit - log_total, log_total - weighted / total, log_total + peak])


def _all_reduce(tensor: Tensor, operation: Any, group: dist.ProcessGroup) -> Tensor:
    if group.size() > 1:
        dist.all_reduce(tensor, operation, group=group)
    return tensor


def _is_local(local_labels: Tensor, num_local: int) -> Tensor:
    return (local_labels >= 0) & (local_labels < num_local)


def _at_labels(logits: Tensor, local_labels: Tensor) -> Tensor:
    """[c]: the label's logit on the rank that holds it, 0 elsewhere."""
    picked = logits.gather(1, local_labels.clamp(0, logits.size(1) - 1)[:, None])[:, 0]
    return picked * _is_local(local_labels, logits.size(1))


def _to_grad_logits(
    log_p: Tensor, local_labels: Tensor, grad_logprob: Tensor, grad_entropy: Tensor | None, entropy: Tensor
) -> None:
    """Turn log p [c, v] into the gradient of the logits, in place.

    d log p_y / d logit_j = [j = y] - p_j and dH / d logit_j = -p_j (log p_j + H).
    """
    if grad_entropy is None:
        log_p.exp_().mul_(-grad_logprob[:, None])
    else:
        p = log_p.exp()
        log_p.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_logprob[:, None]).mul_(p).neg_()
    label_grad = grad_logprob * _is_local(local_labels, log_p.size(1))
    log_p.scatter_add_(1, local_labels.clamp(0, log_p.size(1) - 1)[:, None], label_grad[:, None])


def _add_product(total: Tensor, left: Tensor, right: Tensor) -> None:
    """total += left @ right, summed over chunks in fp32."""
    if total.dtype == left.dtype:
        total.addmm_(left, right)
    else:
        total.add_(left @ right)
