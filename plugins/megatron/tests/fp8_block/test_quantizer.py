"""What a publish in FP8 sends: names, order and dtypes."""

import pytest
import torch

from slime.weights.quantized import quantized, quantizer_of
from slime_megatron.fp8_block.blocks import E4M3
from slime_megatron.fp8_block.config import SCALE, Fp8Format
from slime_megatron.fp8_block.quantizer import quantize
from weight_buckets.bucket import loaded_together

WEIGHTS = {
    "model.embed_tokens.weight": (64, 256),
    "model.layers.0.input_layernorm.weight": (256,),
    "model.layers.0.self_attn.q_a_proj.weight": (128, 256),
    "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": (40, 256),
    "model.layers.0.self_attn.kv_b_proj.weight": (256, 32),
    "model.layers.0.self_attn.indexer.wq_b.weight": (128, 128),
    "model.layers.0.self_attn.indexer.wk.weight": (128, 256),
    "model.layers.0.self_attn.indexer.weights_proj.weight": (8, 256),
    "model.layers.0.mlp.gate.weight": (8, 256),
    "model.layers.0.mlp.experts.0.down_proj.weight": (256, 128),
    "lm_head.weight": (64, 256),
}
QUANTIZER = quantizer_of(Fp8Format())
PLAIN = ("embed_tokens", "layernorm", "indexer.wk", "weights_proj", "mlp.gate", "lm_head")


def weights():
    generator = torch.Generator().manual_seed(0)
    return [(name, torch.randn(shape, generator=generator).bfloat16()) for name, shape in WEIGHTS.items()]


@pytest.mark.parametrize("powers_of_two", [False, True])
def test_a_matrix_is_followed_by_its_scales(powers_of_two):
    quantizer = quantizer_of(Fp8Format(powers_of_two=powers_of_two))
    expected = []
    for name, tensor in weights():
        if any(part in name for part in PLAIN):
            expected.append((name, tensor))
        else:
            [(weight, scales)] = quantize([tensor], powers_of_two=powers_of_two)
            expected += [(name, weight), (name + SCALE, scales)]
    found = quantized(weights(), quantizer)
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, tensor), (_, other) in zip(found, expected, strict=True):
        assert tensor.dtype == other.dtype, name
        assert torch.equal(tensor.view(torch.uint8), other.view(torch.uint8)), name


def test_what_is_quantised_stays_as_it_is():
    once = quantized(weights(), QUANTIZER)
    assert all(one is other for (_, one), (_, other) in zip(quantized(once, QUANTIZER), once, strict=True))


def test_what_sglang_loads_in_one_call_comes_in_one_bucket():
    """Both down projections with both scales; and a matrix of which another is derived, with its scales."""
    runs = [[name for name, _ in run] for run in loaded_together(quantized(weights(), QUANTIZER), lambda x: x[0])]
    attention = "model.layers.0.self_attn."
    down = [f"{attention}{module}.weight{end}" for module in ("q_a_proj", "kv_a_proj_with_mqa") for end in ("", SCALE)]
    assert down in runs
    assert [f"{attention}kv_b_proj.weight", f"{attention}kv_b_proj.weight{SCALE}"] in runs


def test_dtypes():
    dtypes = {name: tensor.dtype for name, tensor in quantized(weights(), QUANTIZER)}
    assert dtypes["model.layers.0.mlp.experts.0.down_proj.weight"] == E4M3
    assert dtypes["model.layers.0.mlp.experts.0.down_proj.weight_scale_inv"] == torch.float32
    assert dtypes["model.layers.0.self_attn.indexer.wk.weight"] == torch.bfloat16
