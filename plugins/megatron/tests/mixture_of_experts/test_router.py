"""What routers add to a step, against transformers in float64, in every layout: losses and the experts' balance.

Each sample is padded and has a micro-batch of its own, beside one of padding alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from slime_testing import models
from slime_testing.engines import hf_tensors
from slime_testing.ranks import Rank, run_ranks
from slime_testing.recorded import recorded_samples
from slime_testing.training import GRADIENT_TOLERANCE, TOLERANCES, record_gradients

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[3] / "models"
TP, PP, CP, EP = (f"{kind}_parallel_size" for kind in ("tensor_model", "pipeline_model", "context", "expert_model"))
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
PART = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
ONE_RANK: Mapping[str, Any] = {"one rank": {}, "recompute": RECOMPUTE, "recompute experts": PART}
TWO_RANKS: Mapping[str, Any] = {"dp2": {}, "tp2": {TP: 2}, "cp2": {CP: 2}, "pp2": {PP: 2}, "tp2-ep2": {TP: 2, EP: 2}}
LOSSES = {"moe_router_load_balancing_type": "aux_loss", "moe_aux_loss_coeff": 0.3, "moe_z_loss_coeff": 0.02}
RATE = 0.01
NUM_BINS = 4


def samples(hf: Mapping[str, Any]) -> list[Any]:
    return recorded_samples(NUM_BINS - 1, hf["vocab_size"])


def train(
    rank: Rank, folder: Path, settings: Mapping[str, Any], layouts: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """By layout: a step's metrics and gradients and the weights after it, then what a spoilt step says and leaves."""
    found = {}
    for name, layout in layouts.items():
        found[name] = _train(rank, folder, {**settings, **layout})
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


def _train(rank: Rank, folder: Path, megatron: dict[str, Any]) -> dict[str, Any]:
    from slime.config.schema import LossMean, SlimeConfig
    from slime.errors import SlimeError
    from slime.train.packing import pack
    from slime_megatron.train.trainer import Trainer

    hf = json.loads((folder / "config.json").read_text())
    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.sft.num_steps, cfg.run.num_steps = hf["model_type"], str(folder), 9, 9
    cfg.train.megatron, cfg.train.optimizer = megatron, {"lr": 1e-3}
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    gradients = record_gradients(trainer)

    def packed(kept: list[Any]) -> list[Any]:
        multiple = NUM_BINS // trainer.data_parallel_size
        options = {"num_dp": trainer.data_parallel_size, "micro_batch_multiple": multiple, "align": 8}
        return pack(kept, max_tokens=64, loss_mean=LossMean.token, **options)

    found: dict[str, Any] = {"metrics": trainer.train(packed(samples(hf)), 0, "sft")}
    found["gradients"] = gradients[0] if gradients else {}
    found["weights"] = weights(trainer)
    first, *others = samples(hf)
    spoilt = first.with_columns(advantages=np.full_like(first.columns["advantages"], np.nan))
    with pytest.raises(SlimeError) as refused:
        trainer.train(packed([spoilt, *others]), 1, "rl")
    return found | {"refused": str(refused.value), "after": weights(trainer)}


def weights(trainer: Any) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in trainer.export()}


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folders = {}
    for family, name in {"qwen3": "moe", "glm4": "moe"}.items():
        folders[family] = tmp_path_factory.mktemp(family)
        hf = json.loads((CONFIGS / family / f"tests/configs/{name}.json").read_text())
        models.write_checkpoint(hf | {"num_nextn_predict_layers": 0}, folders[family])
    return folders


class Routed:
    """transformers' model in float64, and what its routers say of one sample after another."""

    def __init__(self, folder: Path) -> None:
        self.hf = json.loads((folder / "config.json").read_text())
        self.model = models.random_model(self.hf).double()
        self.model.set_experts_implementation("eager")  # the grouped product knows no float64
        self.model.model.embed_tokens.padding_idx = None  # a row that would get no gradient, but samples have the token
        self.logits: list[Tensor] = []
        self.gates = {name: module for name, module in self.model.named_modules() if name.endswith("mlp.gate")}
        for gate in self.gates.values():
            gate.register_forward_hook(self._note)

    def _note(self, gate: Any, args: tuple[Tensor], output: Any) -> None:
        self.logits.append(args[0].flatten(0, -2) @ gate.weight.T)

    def __call__(self, sample: Any) -> tuple[Tensor, list[Tensor]]:
        """Summed loss of the sample's loss tokens, and [tokens, experts] logits of every router."""
        self.logits.clear()
        tokens = torch.from_numpy(sample.tokens)
        logprobs = self.model(tokens[None]).logits[0].log_softmax(-1)[:-1].gather(1, tokens[1:, None])[:, 0]
        counted = torch.from_numpy(sample.loss_mask).double()
        return -(logprobs[-len(counted) :] * counted).sum(), list(self.logits)


def with_losses(folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """Metrics and gradients of the step by the formulas, with transformers' own load balancing loss."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    routed = Routed(folder)
    num_experts, topk = routed.model.config.num_experts, routed.model.config.num_experts_per_tok
    total = {name: torch.zeros((), dtype=torch.float64) for name in ("loss", "load_balancing_loss", "z_loss")}
    for sample in samples(routed.hf):
        loss, logits = routed(sample)
        total["loss"] = total["loss"] + loss
        for of_layer in logits:
            balance = load_balancing_loss_func((of_layer,), num_experts, topk) / topk  # it counts a token topk times
            total["load_balancing_loss"] = total["load_balancing_loss"] + balance * sample.num_tokens
            total["z_loss"] = total["z_loss"] + of_layer.logsumexp(-1).square().sum()
    num_tokens = sum(sample.num_tokens for sample in samples(routed.hf))
    metrics = {"loss": total["loss"] / sum(sample.loss_mask.sum() for sample in samples(routed.hf))}
    metrics |= {name: total[name] / num_tokens for name in ("load_balancing_loss", "z_loss")}
    objective = metrics["loss"] + LOSSES["moe_aux_loss_coeff"] * metrics["load_balancing_loss"]
    torch.autograd.backward(objective + LOSSES["moe_z_loss_coeff"] * metrics["z_loss"])
    with torch.no_grad():
        for parameter in routed.model.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    gradients = {name: tensor.numpy() for name, tensor in hf_tensors(routed.model)}
    layers = {"loss": 1, "load_balancing_loss": len(routed.gates), "z_loss": len(routed.gates)}
    return {name: value.item() / layers[name] for name, value in metrics.items()}, gradients


@pytest.mark.parametrize(("num_ranks", "layouts"), [(1, ONE_RANK), (2, TWO_RANKS)])
def test_losses_of_routers_are_those_of_the_tokens_in_every_layout(
    num_ranks: int, layouts: Mapping[str, Any], checkpoints: dict[str, Path]
) -> None:
    wanted, gradients = with_losses(checkpoints["qwen3"])
    results = run_ranks(train, num_ranks, checkpoints["qwen3"], LOSSES, layouts, timeout_s=110)
    for layout in layouts:
        for result in results:
            got = result[layout]["metrics"]
            assert {name: got[name] for name in wanted} == pytest.approx(wanted, abs=TOLERANCES["mean"]), layout
        for name, gradient in results[0][layout]["gradients"].items():
            error = np.abs(gradient - gradients[name]).max() / np.abs(gradients[name]).max()
            assert error <= GRADIENT_TOLERANCE, f"{layout}: the gradient of {name} is off by {error:.1e}"


def balanced(folder: Path) -> dict[str, Tensor]:
    """The correction biases after a step, by the formula of arXiv 2408.15664: each expert's is moved by the rate."""
    routed = Routed(folder)
    counts: dict[str, Tensor] = {name: torch.zeros(routed.hf["n_routed_experts"]) for name in routed.gates}
    for sample in samples(routed.hf):
        for name, logits in zip(routed.gates, routed(sample)[1], strict=True):
            scores = logits.sigmoid() + routed.gates[name].e_score_correction_bias
            chosen = scores.topk(routed.hf["num_experts_per_tok"]).indices
            counts[name] += F.one_hot(chosen, len(counts[name])).sum((0, 1))
    biases = {name: gate.e_score_correction_bias.float() for name, gate in routed.gates.items()}
    return {
        f"{name}.e_score_correction_bias": biases[name] + RATE * torch.sign(counted.mean() - counted)
        for name, counted in counts.items()
    }


@pytest.mark.parametrize(("num_ranks", "layouts"), [(1, ONE_RANK), (2, TWO_RANKS)])
def test_the_correction_bias_balances_tokens_after_good_steps_alone(
    num_ranks: int, layouts: Mapping[str, Any], checkpoints: dict[str, Path]
) -> None:
    wanted = balanced(checkpoints["glm4"])
    assert len(wanted) == 3
    settings = {"moe_router_bias_update_rate": RATE}
    results = run_ranks(train, num_ranks, checkpoints["glm4"], settings, layouts, timeout_s=110)
    for layout in layouts:
        found = results[0][layout]
        for name, bias in wanted.items():
            torch.testing.assert_close(found["weights"][name], bias, rtol=0, atol=1e-7, msg=f"{layout}: {name}")
        assert "not finite" in found["refused"]
        assert [name for name in wanted if not torch.equal(found["weights"][name], found["after"][name])] == []
