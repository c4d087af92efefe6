"""Logits in fp32 of operands in bf16, against float64."""

import torch
import torch.distributed as dist
from torch import Tensor

from vocabulary_logprobs.logprob import PlainKernels, logprobs_and_entropy, top_logprobs

NUM_TOKENS, HIDDEN, VOCAB = 23, 16, 40


def in_bf16() -> tuple[Tensor, Tensor, Tensor]:
    """Operands of logits as large as a trained model's: up to about 20."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(size, HIDDEN, generator=generator) for size in (NUM_TOKENS, VOCAB))
    labels = torch.randint(VOCAB, (NUM_TOKENS,), generator=generator)
    return (2 * hidden).bfloat16(), weight.bfloat16(), labels


def plain(hidden: Tensor, weight: Tensor, ids: Tensor) -> Tensor:
    """[1 + k, t] log-probs of ids [k, t], behind the entropies."""
    logp = torch.log_softmax(hidden @ weight.t(), dim=1)
    return torch.cat([-(logp.exp() * logp).sum(1)[None], logp.gather(1, ids.t()).t()])


def test_fp32_logits_take_the_head_out_of_the_error(lone_group: dist.ProcessGroup) -> None:
    """Beside the same bf16 operands in float64. bf16 rounds logits of 16 and more to steps of 1/8; sums in fp32 are
    good to 1e-6 of the largest. What is left of the gradients' error is their own rounding to bf16, 2^-9, and that of
    the logits' gradient before the two products."""
    *operands, labels = in_bf16()
    others = torch.stack([(labels + 1) % VOCAB, (labels + 7) % VOCAB])
    exact = [each.double().requires_grad_() for each in operands]
    entropy, own, *rest = plain(*exact, torch.cat([labels[None], others]))
    wanted = torch.stack([own, entropy, *rest])
    factors = torch.linspace(-1, 2, wanted.numel()).view(wanted.shape)
    wanted_gradients = torch.autograd.grad((wanted * factors).sum(), exact)
    off: dict[bool, list[float]] = {}
    for fp32_logits in (False, True):
        given = [each.clone().requires_grad_() for each in operands]
        common = {"chunk_tokens": 7, "group": lone_group, "kernels": PlainKernels(), "fp32_logits": fp32_logits}
        got = logprobs_and_entropy(*given, labels, others=others, entropy_gradient=True, **common)
        gradients = torch.autograd.grad((got * factors).sum(), given)
        apart = [(x - y).norm() / y.norm() for x, y in zip(gradients, wanted_gradients, strict=True)]
        ids, top = top_logprobs(*operands, 6, **common)
        told = plain(*exact, ids.t())[1:].t()
        off[fp32_logits] = [float(x) for x in ((got - wanted).abs().max(), (top - told).abs().max(), *apart)]
    assert min(off[False][:2]) > 1e-2
    assert max(off[True][:2]) < 1e-5
    assert max(off[True][2:]) < 3e-3 < 3.5e-3 < min(off[False][2:])


def test_nothing_changes_where_all_is_fp32(lone_group: dist.ProcessGroup) -> None:
    hidden, weight, labels = in_bf16()
    common = {"chunk_tokens": 7, "entropy_gradient": True, "group": lone_group, "kernels": PlainKernels()}
    given = (hidden.float(), weight.float(), labels)
    one, other = (logprobs_and_entropy(*given, fp32_logits=on, **common) for on in (False, True))
    assert torch.equal(one, other)
