"""Against SGLang's own torch-native attention, which takes one sequence after the other."""

import pytest
import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend

from sglang_torch_cpu import attention

pytestmark = pytest.mark.usefixtures("one_thread")

STOCK = {
    attention.decode: TorchNativeAttnBackend._run_sdpa_forward_decode,
    attention.extend: TorchNativeAttnBackend._run_sdpa_forward_extend,
}
HEADS = {"all their own": (4, 4, 16, 16), "shared": (8, 2, 16, 16), "latent": (8, 1, 48, 32)}
LENGTHS = torch.tensor([9, 1, 12, 9, 30, 12, 12, 9, 2, 9, 30, 12])
OLD = torch.tensor([0, 0, 4, 3, 29, 0, 4, 0, 1, 0, 17, 4])


def attend(function, heads, window=None, rows=slice(None)):
    """What `function` makes of a batch whose tokens lie scattered in the pool; of its sequences `rows` alone."""
    num_heads, num_key_heads, size, value_size = HEADS[heads]
    random = torch.Generator().manual_seed(5)
    new = torch.ones_like(LENGTHS) if function in (attention.decode, STOCK[attention.decode]) else LENGTHS - OLD
    query = torch.randn(int(new.sum()), num_heads, size, generator=random)
    keys = torch.randn(200, num_key_heads, size, generator=random)
    slots = torch.stack([torch.randperm(200, generator=random) for _ in range(20)])
    requests = torch.randperm(20, generator=random)[: len(LENGTHS)]
    query = torch.cat([query.split(new.tolist())[row] for row in range(len(LENGTHS))[rows]])
    lengths, new = LENGTHS[rows], new[rows]
    output = torch.full((len(query), num_heads, value_size), torch.nan)
    parts = [] if function in (attention.decode, STOCK[attention.decode]) else [lengths - new, new]
    found = function(
        TorchNativeAttnBackend,
        query,
        output,
        keys,
        keys[..., :value_size],
        slots,
        requests[rows],
        lengths,
        *parts,
        None,
        scaling=0.3,
        enable_gqa=num_heads != num_key_heads,
        causal=bool(parts),
        is_cross_attn=False,
        sliding_window_size=window,
    )
    assert found is output
    assert not found.isnan().any()
    return found, new


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("function", STOCK)
def test_it_is_sglangs_to_the_last_bit(function, heads, window):
    assert STOCK[function] is not function, "this process holds SGLang's own"
    assert torch.equal(attend(function, heads, window)[0], attend(STOCK[function], heads, window)[0])


@pytest.mark.parametrize("most", [1, 12, 40])
@pytest.mark.parametrize("function", STOCK)
def test_a_call_is_bounded_and_a_sequence_does_not_see_the_others(function, most, monkeypatch):
    whole, new = attend(function, "shared")
    sizes = []

    def recorded(queries, keys, *arguments, **named):
        sizes.append(keys.shape[0] * keys.shape[2])
        return torch.nn.functional.scaled_dot_product_attention(queries, keys, *arguments, **named)

    monkeypatch.setattr(attention, "MOST_TOKENS", most)
    monkeypatch.setattr(attention, "scaled_dot_product_attention", recorded)
    assert torch.equal(attend(function, "shared")[0], whole)
    assert max(sizes) <= max(most, int(LENGTHS.max()))
    for row, alone in enumerate(whole.split(new.tolist())):
        assert torch.equal(attend(function, "shared", rows=slice(row, row + 1))[0], alone)
