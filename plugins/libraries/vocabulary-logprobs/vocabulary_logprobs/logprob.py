"""Log-probability and entropy of next tokens from hidden states, in chunks, over a sharded vocabulary.

Shape letters: t tokens, c tokens of a chunk, h hidden size, v vocabulary entries of this tensor-parallel rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from megatron_core_portable import add_product


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
) -> Tensor:
    """log p(label) and the entropy of p = softmax(hidden @ weight.T / temperature), in nats.

    Logits exist for `chunk_tokens` tokens at a time, in the backward pass (which computes them again) too. The
    product runs in the model's precision, as the engine's does; everything behind it, the division by the temperature
    included, is fp32.

    Args:
        hidden: [t, h], the same on every rank of `group`; its gradient is this rank's part of a sum over `group`.
        weight: [v, h], consecutive rows of the output embedding by rank of `group`.
        labels: [t] int64, indices into the whole vocabulary.
        entropy_gradient: whether the entropy is part of a loss; otherwise its gradient is not computed.
        group: the tensor-parallel group.
        kernels: what turns logits into statistics and gradients, see `vocabulary_kernels`.
        temperature: above 0.
        main_grad: [v, h] fp32, Megatron's gradient buffer of `weight`, to which the gradient is added at once; the
            gradient that autograd then gets is a placeholder, and `weight.grad_added_to_main_grad` says so.

    Returns:
        [2, t] fp32 (float64 for float64 inputs): log-probs and entropies.
    """
    options = _Options(chunk_tokens, entropy_gradient, group, kernels, temperature, main_grad)
    result: Tensor = _LogprobsAndEntropy.apply(hidden, weight, labels, options)  # type: ignore[no-untyped-call]
    return result


class VocabularyKernels(Protocol):
    """The two passes over a chunk of logits, which `PlainKernels` documents and defines."""

    def statistics(self, logits: Tensor, local_labels: Tensor, temperature: float) -> Tensor: ...

    def to_gradient(
        self,
        logits: Tensor,
        local_labels: Tensor,
        log_z: Tensor,
        entropy: Tensor,
        grad_logprob: Tensor,
        grad_entropy: Tensor | None,
        temperature: float,
    ) -> Tensor: ...


class PlainKernels:
    """In plain torch operations: exact, but with several fp32 tensors as large as the chunk of logits."""

    def statistics(self, logits: Tensor, local_labels: Tensor, temperature: float) -> Tensor:
        """[4, c] of x = logits [c, v] / temperature: maximum m, sum(exp z), sum(z exp z) with z = x - m, the label's x.

        A label that another rank holds (outside 0..v-1) counts 0.
        """
        logits = logits.to(_compute_dtype(logits)) / temperature
        label_logit = _at_labels(logits, local_labels)
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
    """The best ones for a device."""
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


class _LogprobsAndEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, labels: Tensor, options: _Options) -> Tensor:
        local_labels = labels - options.group.rank() * weight.size(0)
        scores = [
            _score(torch.mm(rows, weight.t()), label, options)
            for rows, label in zip(
                torch.split(hidden, options.chunk_tokens), torch.split(local_labels, options.chunk_tokens), strict=True
            )
        ]
        logprob, entropy, log_z = torch.cat(scores, dim=1)
        ctx.save_for_backward(hidden, weight, local_labels, log_z, entropy)
        ctx.options = options
        return torch.stack([logprob, entropy])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden, weight, local_labels, log_z, entropy = ctx.saved_tensors
        options: _Options = ctx.options
        grad_logprob, grad_entropy = grads[0].contiguous()
        grad_hidden = torch.empty_like(hidden)
        total = options.main_grad
        if total is None and ctx.needs_input_grad[1]:
            total = torch.zeros_like(weight, dtype=_compute_dtype(weight))
        for start in range(0, len(hidden), options.chunk_tokens):
            rows = slice(start, start + options.chunk_tokens)
            of_rows = (local_labels[rows], log_z[rows], entropy[rows], grad_logprob[rows])
            grad_of_entropy = grad_entropy[rows] if options.entropy_gradient else None
            logits = torch.mm(hidden[rows], weight.t())
            grad_logits = options.kernels.to_gradient(logits, *of_rows, grad_of_entropy, options.temperature)
            torch.mm(grad_logits, weight, out=grad_hidden[rows])
            if total is not None:
                add_product(total, grad_logits.t(), hidden[rows])
            del logits, grad_logits  # before the next chunk's are made
        if options.main_grad is None:
            return grad_hidden, None if total is None else total.to(weight.dtype), None, None
        weight.grad_added_to_main_grad = True
        # DDP wants to see some gradient before it reduces the buffer; this one costs no memory and is never read.
        return grad_hidden, weight.detach(), None, None


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


def _at_labels(logits: Tensor, local_labels: Tensor) -> Tensor:
    """[c]: the label's logit on the rank that holds it, 0 elsewhere."""
    picked = logits.gather(1, local_labels.clamp(0, logits.size(1) - 1)[:, None])[:, 0]
    return picked * _is_local(local_labels, logits.size(1))
