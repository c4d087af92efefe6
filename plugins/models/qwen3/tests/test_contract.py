"""The contract every model plugin keeps: parity with transformers, exact round trips, the same training everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from slime.weights.file_tensors import SINGLE
from slime_testing import models
from slime_testing.contract import CHECKS, contracts

CONTRACTS = contracts(Path(__file__).parent / "configs")


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", CONTRACTS)
def test_contract(model: str, check: str) -> None:
    CHECKS[check](CONTRACTS[model])


@pytest.mark.slow
def test_logits_without_normalised_routing_weights(tmp_path: Path) -> None:
    models.write_checkpoint({**CONTRACTS["moe"].hf, "norm_topk_prob": False}, tmp_path)
    models.check_parity("qwen3_moe", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("alone", [False, True])
def test_logits_of_a_tied_model_with_its_output_layer_stored(tmp_path: Path, *, alone: bool) -> None:
    """As Qwen3-0.6B and 1.7B are published; and with that copy in the place of the embeddings."""
    models.write_checkpoint({**CONTRACTS["dense"].hf, "tie_word_embeddings": True}, tmp_path)
    tensors = load_file(tmp_path / SINGLE)
    embeddings = tensors.pop("model.embed_tokens.weight") if alone else tensors["model.embed_tokens.weight"]
    save_file({**tensors, "lm_head.weight": embeddings.clone()}, tmp_path / SINGLE, {"format": "pt"})
    models.check_parity("qwen3", tmp_path)
