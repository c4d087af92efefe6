"""The contract every model plugin keeps: parity with transformers, exact round trips, the same training everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from slime.testing.contract import CHECKS, contracts
from slime.testing.recorded import recorded_samples
from slime.types import TrainSample
from slime_plugin_mimo import hf

hf.register()
CONTRACTS = contracts(Path(__file__).parent / "configs")
MTP_LOSS_SCALE = 0.2  # of slime.testing.training


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", CONTRACTS)
def test_contract(model: str, check: str) -> None:
    CHECKS[check](CONTRACTS[model])


@pytest.mark.slow
def test_prediction_layer_learns_by_the_formula() -> None:
    """Loss and gradients of the first step against transformers' modules in float64, joined as in SGLang's mimo_mtp.py.

    transformers' RMSNorm computes in fp32 whatever it is given, as the trainer does: that is what the tolerances allow.
    """
    from transformers import AutoModelForCausalLM

    contract = CONTRACTS["dense"]
    model = AutoModelForCausalLM.from_pretrained(contract.folder).double()
    samples = recorded_samples(24, contract.hf["vocab_size"])
    num_loss_tokens = sum(float(sample.loss_mask.sum()) for sample in samples)
    loss = sum(_prediction_loss(model, sample) for sample in samples) / num_loss_tokens
    (MTP_LOSS_SCALE * loss).backward()

    assert contract.one_rank.history[0]["mtp_loss"] == pytest.approx(float(loss), rel=1e-6)
    gradients = contract.one_rank.gradients[0]
    for name, parameter in model.model.mtp_layers.named_parameters(prefix="model.mtp_layers"):
        found = torch.from_numpy(gradients[name]).double()
        assert (found - parameter.grad).abs().max() <= 1e-5 * parameter.grad.abs().max(), name


def _prediction_loss(model: Any, sample: TrainSample) -> torch.Tensor:
    """Sum of the loss tokens' cross-entropy: token i + 2 from the main model's output at i and token i + 1."""
    layer, tokens = model.model.mtp_layers[0], torch.from_numpy(sample.tokens)[None]
    with torch.no_grad():
        hidden = model.model(tokens).last_hidden_state[:, :-2]
        embedded = model.model.embed_tokens(tokens[:, 1:-1])
        rotary = model.model.rotary_emb(hidden, torch.arange(hidden.shape[1])[None])
    joined = torch.cat([layer.hidden_layernorm(hidden), layer.token_layernorm(embedded)], dim=-1)
    output = layer(layer.input_proj(joined), attention_mask=None, position_embeddings=rotary)
    logprobs = (layer.final_layernorm(output) @ model.lm_head.weight.detach().T).log_softmax(-1)
    of_labels = logprobs[0].gather(1, tokens[0, 2:, None])[:, 0]
    weights = torch.zeros(tokens.shape[1], dtype=torch.float64)
    weights[-len(sample.loss_mask) :] = torch.from_numpy(sample.loss_mask).double()
    return -(of_labels * weights[2:]).sum()
