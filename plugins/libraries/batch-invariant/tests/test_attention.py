"""Against torch's own in float64, and against itself: at once, in parts and token by token, from scattered slots."""

import pytest
import torch

from batch_invariant import attention

from . import sequences

DTYPES = {torch.float32: 3e-6, torch.bfloat16: 3e-2}


def same(found, wanted):
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads", sequences.HEADS)
def test_attention(dtype, heads, monkeypatch):
    case = sequences.Case(heads, dtype, torch.device("cpu"))
    whole = case.whole()
    torch.testing.assert_close(whole.double(), case.exact(), rtol=0, atol=DTYPES[dtype])
    case.check_parts(same)
    monkeypatch.setattr(attention, "MOST_TILES", 2)
    same(case.whole(), whole)


def test_torchs_own_depends_on_the_number_of_queries():
    """Or this module would be for nothing."""
    case, sdpa = sequences.Case("shared", torch.float32, torch.device("cpu")), torch.nn.functional
    q, k, v = (x[-70:].transpose(0, 1)[None] for x in (case.query, case.key, case.value))
    options = {"scale": sequences.SCALE, "enable_gqa": True}
    whole = sdpa.scaled_dot_product_attention(q, k, v, is_causal=True, **options)
    assert not torch.equal(sdpa.scaled_dot_product_attention(q[:, :, -1:], k, v, **options), whole[:, :, -1:])
