"""What was done to weights is told by their names, their dtypes and what config.json says of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from slime.errors import SlimeError
from slime.weights.causes import MODELOPT, changed_names, quantization, trainable_config
from slime.weights.file_tensors import SINGLE
from slime.weights.hf_files import HfFiles

HF = {"model_type": "tiny", "num_hidden_layers": 1}
INTS, BYTES, FP8 = torch.zeros(4, 4, dtype=torch.int32), torch.zeros(4, 4, dtype=torch.uint8), torch.float8_e4m3fn
PLAIN = {"a.weight": torch.ones(4, 4, dtype=torch.bfloat16)}
BLOCK = {"quant_method": "fp8", "weight_block_size": [128, 128]}
CT = {"quant_method": "compressed-tensors"}


def said(folder: Path, config: Mapping[str, Any] | None, tensors: dict[str, torch.Tensor]) -> str:
    hf = {**HF, **({"quantization_config": dict(config)} if config else {})}
    (folder / "config.json").write_text(json.dumps(hf))
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / SINGLE)
    found = quantization(folder, hf, HfFiles(folder).tensors)
    if config:
        again = quantization(folder, hf)
        assert str(again) == str(found), "tensors are looked up where config.json says that they are quantised"
    return str(found or "")


@pytest.mark.parametrize(
    ("config", "tensors", "says"),
    [
        ({"quant_method": "awq"}, {"a.qweight": INTS, "a.qzeros": INTS}, "AWQ (quantization_config: 'awq')"),
        ({"quant_method": "gptq"}, {"a.qweight": INTS, "a.g_idx": INTS}, "GPTQ (quantization_config: 'gptq')"),
        (None, {"a.qweight": INTS, "a.g_idx": INTS}, "the weights are quantised: GPTQ. slime trains"),
        ({"load_in_4bit": True}, {"a.weight": BYTES, "a.weight.absmax": INTS}, "call dequantize()"),
        (CT, {"a.weight_packed": INTS}, "compressed-tensors"),
        (CT, {"a.weight": BYTES.to(torch.int8)}, "compressed-tensors"),
        ({"quant_method": "mxfp4"}, {"a_blocks": BYTES, "a_scales": BYTES}, "Mxfp4Config(dequantize=True)"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, {"a.weight_scale_2": INTS}, "NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, {"a.weight": BYTES.to(FP8)}, "'modelopt fp8'"),
        ({"quant_method": "torchao"}, {"a.weight_qdata": BYTES}, "torchao"),
        ({**BLOCK, "fmt": "e5m2"}, {"a.weight": BYTES.to(torch.float8_e5m2)}, "FP8 (F8_E5M2). slime converts E4M3"),
        (
            {**BLOCK, "weight_block_size": [64, 64]},
            {"a.weight": BYTES.to(FP8)},
            "in blocks of [64, 64]. slime converts",
        ),
        ({"quant_method": "something"}, {"a.weight": BYTES}, "something"),
    ],
)
def test_quantised_weights_that_slime_does_not_convert(
    tmp_path: Path, config: Mapping[str, Any] | None, tensors: dict[str, torch.Tensor], says: str
) -> None:
    found = said(tmp_path, config, tensors)
    assert says in found
    assert "fp8-to-bf16" not in found
    assert not said(tmp_path, None, PLAIN)


@pytest.mark.parametrize("config", [BLOCK, {"quant_method": "fp8"}, CT])
def test_fp8_is_converted(tmp_path: Path, config: Mapping[str, Any]) -> None:
    found = said(tmp_path, config, {"a.weight": BYTES.to(FP8), "a.weight_scale_inv": torch.ones(1, 1)})
    assert f"the weights are FP8. Run 'slime convert fp8-to-bf16 {tmp_path} {tmp_path}-BF16'" in found
    assert ("rollout.fp8=" in found) == (config == BLOCK)


def test_fp8_of_which_config_json_says_nothing(tmp_path: Path) -> None:
    found = said(tmp_path, None, {"a.weight": BYTES.to(FP8), "a.weight_scale_inv": torch.ones(1, 1)})
    assert "config.json has no 'quantization_config': take the published one" in found


@pytest.mark.parametrize("config", [BLOCK, {"quant_method": "awq"}, {"load_in_8bit": True}, CT])
def test_a_rest_of_quantisation(tmp_path: Path, config: Mapping[str, Any]) -> None:
    found = said(tmp_path, config, PLAIN)
    assert found.startswith(f"{tmp_path}/config.json: 'quantization_config' says that the weights are quantised")
    assert "but they are BF16. Remove quantization_config" in found


def test_what_modelopt_says_in_a_file_of_its_own(tmp_path: Path) -> None:
    assert not said(tmp_path, None, PLAIN)
    (tmp_path / MODELOPT).write_text(json.dumps({"quantization": {"quant_algo": "NVFP4"}}))
    assert f"Remove {MODELOPT}" in said(tmp_path, None, PLAIN)
    assert "NVFP4 (hf_quant_config.json: 'modelopt nvfp4')" in said(tmp_path, None, {"a.weight_scale_2": INTS})


def test_a_folder_with_another_form_in_the_place_of_config_json(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(SlimeError, match="only an adapter is there"):
        trainable_config(str(tmp_path), None)
    (tmp_path / "config.json").write_text(json.dumps(HF))
    assert trainable_config(str(tmp_path), None) == HF


NAMES = ["model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight", "lm_head.weight"]


@pytest.mark.parametrize(
    ("prefix", "says"),
    [
        ("base_model.model.", "by PEFT"),
        ("_orig_mod.", "by torch.compile"),
        ("module.", "by DistributedDataParallel or DeepSpeed"),
        ("module.module.", "by DistributedDataParallel or DeepSpeed"),
        ("_fsdp_wrapped_module.", "by FSDP"),
        ("pretrained_model.", "by TRL's value head"),
        ("model.language_model.", "by a model of several modalities"),
        ("transformer.", "'transformer.' too many"),
    ],
)
def test_a_prefix(prefix: str, says: str) -> None:
    found = changed_names(NAMES, [], [prefix + name for name in NAMES])
    assert found
    assert prefix.split(".")[0] in found[0]
    assert says in found[0]
    assert "'model.embed_tokens.weight'" in found[0]


def test_wrappers_in_the_middle_of_names() -> None:
    for change, says in ((".mlp.", ".mlp._orig_mod."), (".layers.0.", ".layers.0._checkpoint_wrapped_module.")):
        there = [name.replace(change, says) for name in NAMES]
        found = changed_names(set(NAMES) - set(there), [], set(there) - set(NAMES))
        assert found
        assert says.split(".")[-2] in found[0]


def test_the_base_class() -> None:
    there = [name.removeprefix("model.") for name in NAMES if name != "lm_head.weight"]
    found = changed_names(NAMES, [], there)
    assert found
    assert "names of tensors lack 'model.' ('embed_tokens.weight' for" in found[0]
    assert found[0].endswith("without 'lm_head.weight'")
    found = changed_names(NAMES[:-1], ["lm_head.weight"], there)
    assert found
    assert found[0].endswith("the base class was saved (AutoModel)")


def test_what_was_put_on_a_model() -> None:
    for name, says in {"v_head.summary.weight": "TRL", "model.q_proj.lora_A.weight": "not merged"}.items():
        found = changed_names([], [], [name])
        assert found
        assert says in found[0]


def test_names_that_nothing_is_known_of() -> None:
    assert changed_names(NAMES, [], []) is None
    assert changed_names([], [], ["model.scale"]) is None
    assert changed_names(["model.norm.weight"], [], ["model.nrom.weight"]) is None
