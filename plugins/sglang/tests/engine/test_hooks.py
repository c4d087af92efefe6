"""What a version must write into an engine's model."""

from __future__ import annotations

import torch

from slime_sglang.engine.hooks import _own_parameters, unset_scales


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
