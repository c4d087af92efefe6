"""The kernels over chunks of logits against the plain form in float64.

bf16 results are rounded once (the interpreter cuts them off: 2^-7 relative).
"""

import pytest
import torch
from torch import Tensor

from vocabulary_logprobs.logprob import PlainKernels

TOLERANCES = {torch.float32: {"rtol": 1e-5, "atol": 1e-6}, torch.bfloat16: {"rtol": 2**-7, "atol": 1e-5}}
NUM_ROWS = 5


def inputs(num_columns: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Logits whose largest entry lies anywhere, and labels of which some belong to other ranks."""
    generator = torch.Generator().manual_seed(num_columns)
    logits = 4 * torch.randn(NUM_ROWS, num_columns, generator=generator)
    labels = torch.tensor([0, num_columns - 1, -3, num_columns, num_columns // 2])
    return logits.to(device, dtype), labels.to(device)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_columns", "temperature"), [(10, 1.0), (4096, 1), (9001, 0.7)])
def test_statistics(num_columns: int, temperature: float, dtype: torch.dtype, device: torch.device) -> None:
    from vocabulary_logprobs import kernels as vocabulary

    logits, labels = inputs(num_columns, dtype, device)
    wanted = PlainKernels().statistics(logits.double(), labels, temperature)
    got = vocabulary.statistics(logits, labels, temperature)
    torch.testing.assert_close(got.double(), wanted, **TOLERANCES[torch.float32])  # fp32 also of bf16 logits


@pytest.mark.gpu
@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("num_columns", "temperature"), [(10, 1.0), (9001, 0.7)])
def test_to_gradient(
    num_columns: int, temperature: float, dtype: torch.dtype, with_entropy: bool, device: torch.device
) -> None:
    from vocabulary_logprobs import kernels as vocabulary

    logits, labels = inputs(num_columns, dtype, device)
    exact = logits.double()
    log_p = torch.log_softmax(exact / temperature, dim=1)
    log_z = torch.logsumexp(exact / temperature, dim=1)
    entropy = -(log_p.exp() * log_p).sum(1)
    grad_logprob = torch.linspace(-1, 2, NUM_ROWS, device=device)
    grad_entropy = torch.linspace(1, -1, NUM_ROWS, device=device) if with_entropy else None
    exactly = [None if grad is None else grad.double() for grad in (grad_logprob, grad_entropy)]
    wanted = PlainKernels().to_gradient(exact, labels, log_z, entropy, *exactly, temperature)
    rounded = (log_z.float(), entropy.float(), grad_logprob, grad_entropy)
    got = vocabulary.to_gradient(logits, labels, *rounded, temperature)
    assert got.data_ptr() == logits.data_ptr(), "the gradient takes the logits' place"
    # log Z in fp32 is good to 1e-6 absolutely, so are the probabilities' logarithms
    torch.testing.assert_close(got.double(), wanted, **TOLERANCES[dtype])
