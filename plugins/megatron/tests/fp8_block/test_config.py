"""What a `quantization_config` says, and what SGLang and transformers make of ours."""

from typing import Any

import pytest

from slime.compose.compose import examine
from slime.errors import SlimeError
from slime_megatron.fp8_block.config import Fp8Format, fp8_format, gpu_problem

DEEPSEEK = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
MATRIX = (256, 512)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("model.layers.0.self_attn.q_a_proj.weight", MATRIX, True),
        ("model.layers.3.mlp.experts.7.down_proj.weight", MATRIX, True),
        ("model.layers.3.mlp.gate_proj.weight", MATRIX, True),
        ("model.layers.3.mlp.gate.weight", MATRIX, False),
        ("model.layers.0.input_layernorm.weight", (512,), False),
        ("model.layers.0.self_attn.q_proj.bias", (256,), False),
        ("model.embed_tokens.weight", MATRIX, False),
        ("lm_head.weight", MATRIX, False),
        ("model.layers.4.eh_proj.weight", MATRIX, False),
        ("model.layers.4.self_attn.indexer.wq_b.weight", MATRIX, True),
        ("model.layers.4.self_attn.indexer.weights_proj.weight", MATRIX, False),
    ],
)
def test_matrices_of_linear_layers_are_quantized(name: str, shape: tuple[int, ...], expected: bool) -> None:
    assert fp8_format(DEEPSEEK, "config.json").quantizes(name, shape) == expected


@pytest.mark.parametrize("key", ["modules_to_not_convert", "ignored_layers"])
@pytest.mark.parametrize("ignored", ["model.layers.0", "layers.0.self_attn", "self_attn.kv_b_proj", "kv_b_proj"])
def test_modules_are_ignored_as_the_engine_ignores_them(key: str, ignored: str) -> None:
    from sglang.srt.layers.quantization.fp8 import Fp8Config
    from sglang.srt.layers.quantization.utils import is_layer_skipped

    config = {**DEEPSEEK, key: [ignored]}
    ours, theirs = fp8_format(config, "config.json"), Fp8Config.from_config(config)
    for layer in (0, 1, 10):
        for module in ("self_attn.kv_b_proj", "self_attn.o_proj", "mlp.down_proj"):
            name = f"model.layers.{layer}.{module}"
            assert ours.quantizes(f"{name}.weight", MATRIX) != is_layer_skipped(name, theirs.ignored_layers), name


def test_what_is_written_is_read_alike() -> None:
    from transformers.utils.quantization_config import FineGrainedFP8Config

    ours = Fp8Format(powers_of_two=True)
    assert fp8_format(ours.to_config(), "config.json") == ours
    theirs = FineGrainedFP8Config.from_dict(ours.to_config())
    assert list(theirs.weight_block_size) == [128, 128]
    assert theirs.scale_fmt == "ue8m0"
    assert tuple(theirs.modules_to_not_convert) == ours.ignored


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"quant_method": "compressed-tensors"}, "quantization_config.quant_method: is compressed-tensors (one scale"),
        ({"quant_method": "awq"}, "is 'awq', not 'fp8'"),
        ({"weight_block_size": None}, "weight_block_size: is None, but live engines"),
        ({"weight_block_size": [64, 128]}, r"is [64, 128], but live engines"),
        ({"fmt": "e5m2"}, "quantization_config.fmt: is 'e5m2', not 'e4m3'"),
        ({"activation_scheme": "static"}, "is 'static', not 'dynamic'"),
        ({"scale_fmt": "ue4m3"}, "is 'ue4m3'"),
    ],
)
def test_other_formats_are_refused_with_what_to_convert(change: dict[str, Any], says: str) -> None:
    with pytest.raises(SlimeError) as error:
        fp8_format({**DEEPSEEK, **change}, "folder/config.json")
    assert says in str(error.value)
    assert "slime convert bf16-to-fp8" in error.value.todo


@pytest.mark.parametrize(("gpu", "fits"), [("h100", True), ("l40s", True), ("a100-80", False), ("b200", False)])
def test_a_plan_refuses_fp8_on_gpus_whose_engines_change_its_layout(gpu: str, fits: bool) -> None:
    words = ["+model=glm4.7-flash", "+cluster=h100x8", "rollout.fp8=block", f"cluster.gpu={gpu}"]
    found = [str(problem) for problem in examine(words).problems if problem.where == "rollout.fp8"]
    assert found == ([] if fits else [str(gpu_problem(gpu, 8.0))])
    assert fits or found[0].startswith(f"rollout.fp8: {gpu}: SGLang changes the layout of FP8 weights there")
    assert not examine([*words[:2], f"cluster.gpu={gpu}"]).problems
