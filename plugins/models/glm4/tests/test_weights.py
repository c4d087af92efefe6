"""The contract every model plugin keeps: parity with transformers, exact round trips, the same training everywhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from slime_megatron.train.weights.save_hf import save_hf
from slime_testing import models
from slime_testing.contract import CHECKS, EP, LAYOUTS_MOE, TP, contracts

CONTRACTS = contracts(Path(__file__).parent / "configs")
DENSE, MOE = dict(CONTRACTS["dense"].hf), dict(CONTRACTS["moe"].hf)
FAMILIES = [DENSE, MOE]
GROUPED = MOE | {"n_group": 4, "topk_group": 2}  # four groups of two experts, two groups kept


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", CONTRACTS)
def test_contract(model: str, check: str) -> None:
    CHECKS[check](CONTRACTS[model])


@pytest.mark.slow
@pytest.mark.parametrize("hf", [GROUPED, MOE | {"use_qk_norm": False}], ids=["grouped", "no-qk-norm"])
def test_logits_of_variants(hf: dict[str, Any], tmp_path: Path) -> None:
    models.write_checkpoint(hf, tmp_path)
    models.check_parity(hf["model_type"], tmp_path)


@pytest.mark.slow
def test_cut_model_is_the_first_layers(tmp_path: Path) -> None:
    models.write_checkpoint(MOE, tmp_path)
    models.check_parity("glm4_moe", tmp_path, num_layers=2)


@pytest.mark.slow
def test_round_trip_of_cut_experts_is_exact(tmp_path: Path) -> None:
    """Weights only: gloo cannot gather the unequal token counts that training in this layout has (NCCL can)."""
    models.write_checkpoint(MOE, tmp_path, max_shard_size="150KB")
    models.check_round_trip("glm4_moe", tmp_path, 4, {"tp2-etp2-ep2": {TP: 2, EP: 2, "expert_tensor_parallel_size": 2}})


@pytest.mark.slow
def test_round_trip_in_bf16_keeps_the_correction_bias_in_fp32(tmp_path: Path) -> None:
    models.write_checkpoint(MOE, tmp_path, dtype=torch.bfloat16)
    kinds = {name: tensor.dtype for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    assert kinds["model.layers.1.mlp.gate.e_score_correction_bias"] is torch.float32
    assert kinds["model.norm.weight"] is torch.bfloat16
    layouts = {name: {**parallel, "bf16": True} for name, parallel in LAYOUTS_MOE[2].items()}
    models.check_round_trip("glm4_moe", tmp_path, 2, layouts)


@pytest.mark.slow
def test_tensor_parallelism_that_cuts_key_value_heads_is_refused(tmp_path: Path) -> None:
    models.write_checkpoint(DENSE | {"num_key_value_heads": 1}, tmp_path)
    with pytest.raises(AssertionError, match="tensor parallelism cuts between key-value groups"):
        models.check_round_trip("glm4", tmp_path, 2, {"tp2": {"tensor_model_parallel_size": 2}})


@pytest.mark.parametrize("hf", FAMILIES, ids=["dense", "moe"])
def test_transformers_loads_what_is_saved(hf: dict[str, Any], tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    models.write_checkpoint(hf, tmp_path / "source")
    source = load_file(tmp_path / "source/model.safetensors")
    save_hf(source.items(), tmp_path / "source", tmp_path / "saved", shard_bytes=150_000)
    tokens = models.sequences(hf["vocab_size"])[1][None]
    with torch.no_grad():
        one, other = (
            AutoModelForCausalLM.from_pretrained(tmp_path / name)(tokens).logits for name in ("source", "saved")
        )
    assert torch.equal(one, other)
    assert len(list((tmp_path / "saved").glob("*.safetensors"))) > 1
    assert json.loads((tmp_path / "saved/config.json").read_text())["dtype"] == "float32"
