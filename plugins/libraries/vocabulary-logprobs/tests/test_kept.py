"""Log-probs among kept tokens against torch's log_softmax in float64, with gradients."""

import pytest
import torch
import torch.distributed as dist

from vocabulary_logprobs.kept import renormalised
from vocabulary_logprobs.logprob import PlainKernels, logprobs_and_entropy

NUM_TOKENS, HIDDEN, VOCAB, NUM_OTHERS = 23, 16, 40, 5


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_log_probs_among_kept_tokens(lone_group: dist.ProcessGroup, temperature: float) -> None:
    """Softmax over the logits of the kept tokens alone, in float64: none at the first place, one at the second, which
    is the label, the label and up to five others elsewhere."""
    generator = torch.Generator().manual_seed(2)
    hidden, weight = (
        torch.randn(size, HIDDEN, generator=generator, dtype=torch.float64).requires_grad_()
        for size in (NUM_TOKENS, VOCAB)
    )
    labels = torch.randint(VOCAB, (NUM_TOKENS,), generator=generator)
    others = torch.stack([torch.randperm(VOCAB, generator=generator)[:NUM_OTHERS] for _ in range(NUM_TOKENS)], dim=1)
    ids = torch.cat([labels[None], others])
    is_kept = torch.rand(ids.shape, generator=generator) < 0.7
    is_kept[1:] &= ids[1:] != labels
    is_kept[0], is_kept[:, 0], is_kept[1:, 1], is_kept[2:, -1] = True, False, False, False
    out = torch.ones(NUM_TOKENS, VOCAB, dtype=torch.bool)
    for row, place in is_kept.nonzero().tolist():
        out[place, ids[row, place]] = False
    out[0] = False
    logq = torch.log_softmax((hidden @ weight.t() / temperature).masked_fill(out, -torch.inf), dim=1)
    wanted = torch.stack(
        [logq.gather(1, labels[:, None])[:, 0], -(logq.exp() * logq.masked_fill(out, 0.0)).sum(1)],
    )
    options = {"chunk_tokens": 7, "entropy_gradient": True, "group": lone_group, "kernels": PlainKernels()}
    asked = ids.where(is_kept, -1)
    scores = logprobs_and_entropy(hidden, weight, labels, others=asked, temperature=temperature, **options)
    got = renormalised(scores, is_kept)
    torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
    assert float(got[:, 1].detach().abs().max()) < 1e-12, "where one token is left it is certain"
    factors = torch.linspace(-1, 2, 2 * NUM_TOKENS, dtype=torch.float64).view(2, -1)
    gradients = torch.autograd.grad((got * factors).sum(), (hidden, weight))
    wanted_gradients = torch.autograd.grad((wanted * factors).sum(), (hidden, weight))
    torch.testing.assert_close(gradients, wanted_gradients, rtol=1e-12, atol=1e-12)
