"""What a version must write into an engine's model."""

from __future__ import annotations

import pytest
import torch

from slime.weights.engine.sglang_hooks import _own_parameters, unset_scales


class Attention(torch.nn.Module):
    """Under the names that SGLang's latent attention has for them."""

    def __init__(self, *, skip_topk: bool | None, is_nextn: bool) -> None:
        super().__init__()
        self.skip_topk, self.is_nextn = skip_topk, is_nextn
        self.o_proj = torch.nn.Linear(2, 2, bias=False)
        if skip_topk is not None:
            self.indexer = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("skip_topk", "is_nextn", "must_have_indexer"),
    [(False, False, True), (True, False, False), (True, True, True), (None, False, False)],
)
def test_indexers_that_never_run_need_no_weights(
    skip_topk: bool | None, is_nextn: bool, must_have_indexer: bool
) -> None:
    model = torch.nn.ModuleList([Attention(skip_topk=skip_topk, is_nextn=is_nextn)])
    indexer = {"0.indexer.weight", "0.indexer.bias"} if must_have_indexer else set()
    assert {name for name, _ in _own_parameters(model)} == {"0.o_proj.weight"} | indexer


def test_scales_of_a_cache_are_one_after_dummy_weights() -> None:
    """SGLang draws its dummy weights for them too: near 0, by which a cache in FP8 would lose every value."""
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sglang.srt.layers.quantization.kv_cache import BaseKVCacheMethod

    layer = torch.nn.Module()
    method = BaseKVCacheMethod(Fp8Config(is_checkpoint_fp8_serialized=True, weight_block_size=[128, 128]))
    method.create_weights(layer)
    for scale in layer.parameters():
        scale.fill_(3e-4)
    unset_scales(method, layer)
    method.process_weights_after_loading(layer)
    assert [scale.item() for scale in layer.parameters()] == [1, 1]
    assert (layer.k_scale_float, layer.v_scale_float) == (1, 1)
    assert not list(_own_parameters(layer)), "no version brings them"
