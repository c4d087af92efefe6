"""Operators on rows: against torch in float64, and no bit of a row depends on the others."""

import pytest
import torch
import torch.nn.functional as F

from batch_invariant import rows

WIDTHS = (48, 100, 384)
PARTS = [slice(0, 1), slice(3, 5), slice(7, 12), slice(16, 49)]
COS, SIN = torch.randn(64, 8), torch.randn(64, 8)


def weight(width, dtype):
    return torch.linspace(0.5, 2, width).to(dtype)


OURS = {
    "norm": lambda x, _: rows.rms_norm(x, weight(x.size(1), x.dtype), 1e-5),
    "swiglu": lambda x, _: rows.swiglu(x),
    "halves": lambda x, part: rows.rotate(x[:, None, :20], COS[part], SIN[part], False)[:, 0],
    "neighbours": lambda x, part: rows.rotate(x[:, None, :20], COS[part], SIN[part], True)[:, 0],
}


def exact(name, x):
    x, width = x.double(), x.size(1)
    if name == "norm":
        return F.rms_norm(x, (width,), weight(width, torch.bfloat16).double(), 1e-5)
    if name == "swiglu":
        return F.silu(x[:, : width // 2]) * x[:, width // 2 :]
    pairs = [slice(0, 16, 2), slice(1, 16, 2)] if name == "neighbours" else [slice(0, 8), slice(8, 16)]
    turned = torch.complex(x[:, pairs[0]], x[:, pairs[1]]) * torch.complex(COS.double(), SIN.double())
    found = x[:, :20].clone()
    found[:, pairs[0]], found[:, pairs[1]] = turned.real, turned.imag
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", OURS)
def test_operators(name, width, dtype):
    x = (8 * torch.randn(64, width)).to(torch.bfloat16).to(dtype)
    found = OURS[name](x, slice(None))
    near = {"rtol": 2**-8, "atol": 1e-6} if dtype == torch.bfloat16 else {"rtol": 2e-5, "atol": 2e-5}
    if name == "norm":
        near["rtol"] += 2**-8  # of the weights, which are rounded too
    torch.testing.assert_close(found.double(), exact(name, x), **near)
    for part in PARTS:
        assert torch.equal(OURS[name](x[part].clone(), part), found[part])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_statistics(temperature):
    logits, labels = 5 * torch.randn(64, 5000), torch.randint(0, 5000, (64,))
    found = rows.logprob(rows.statistics(logits, labels, temperature))
    wanted = (logits.double() / temperature).log_softmax(1).gather(1, labels[:, None])[:, 0]
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-5)
    for part in PARTS:
        every = torch.full((64,), temperature)[part]
        assert torch.equal(rows.logprob(rows.statistics(logits[part].clone(), labels[part], every)), found[part])


def test_a_label_elsewhere_counts_0():
    assert rows.statistics(torch.ones(2, 4), torch.tensor([-1, 4]), 1.0)[3].tolist() == [0, 0]
