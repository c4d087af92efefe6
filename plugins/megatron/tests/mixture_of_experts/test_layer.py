"""The layer with experts gives what Megatron-core's own gives, outputs and gradients, however experts are shared out.

What transformers makes of whole models, and float64, is in the contract of every model plugin and beside this file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime_testing.ranks import Rank, run_ranks

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).parents[3] / "models/glm4/tests/configs/moe.json"
TP, EP = "tensor_model_parallel_size", "expert_model_parallel_size"
GROUPED = {"bf16": True, "moe_grouped_gemm": True}
PART = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
ACTIVATION = {"recompute_granularity": "selective", "recompute_modules": ["moe_act"]}
ONE_RANK: Mapping[str, Any] = {
    "single": {},
    "grouped": GROUPED,
    "recompute": PART,
    "grouped, activation": GROUPED | ACTIVATION,
}
TWO_RANKS: Mapping[str, Any] = {
    "ep2": {EP: 2},
    "ep2 grouped": {EP: 2, **GROUPED},
    "ep2 recompute": {EP: 2, **PART},
    "tp2 ep2": {TP: 2, EP: 2},
}
NUM_TOKENS = 24


def layers(rank: Rank, folder: Path, layouts: Mapping[str, Any]) -> dict[str, Any]:
    """By layout: outputs and gradients of our layer, again of ours, and of Megatron-core's."""
    found = {}
    for name, layout in layouts.items():
        found[name] = _three_times(rank, folder, layout)
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


def _three_times(rank: Rank, folder: Path, megatron: dict[str, Any]) -> list[list[Tensor]]:
    from megatron.core.transformer.moe.experts import GroupedMLP
    from megatron.core.transformer.moe.moe_layer import MoELayer

    from megatron_core_portable import cpu_stands_in_for_cuda
    from slime.config.schema import Init, SlimeConfig
    from slime_megatron.mixture_of_experts.grouped import GroupedExperts
    from slime_megatron.mixture_of_experts.layer import ExpertLayer
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig()
    cfg.model.family, cfg.model.path, cfg.model.init = "glm4_moe", str(folder), Init.random
    cfg.run.num_steps, cfg.train.megatron = 9, megatron
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    [layer, *_] = (part for module in trainer.model.modules for part in module.modules() if type(part) is ExpertLayer)
    assert isinstance(layer.experts, GroupedExperts) == ("moe_grouped_gemm" in megatron)
    layer.train()
    activated = []
    if isinstance(layer.experts, GroupedExperts):
        activate = layer.experts.activate
        layer.experts.activate = lambda *given: activated.append(len(given)) or activate(*given)

    def run(forward: Any) -> list[Tensor]:
        generator = torch.Generator().manual_seed(rank.rank)
        num_tokens = (
            NUM_TOKENS if TP in megatron else NUM_TOKENS + 5 * rank.rank
        )  # ranks of experts have packs of their own
        hidden, gradient = (torch.randn(num_tokens, 1, 64, generator=generator) for _ in range(2))
        dtype = torch.bfloat16 if megatron.get("bf16") else torch.float32
        hidden, padding = hidden.to(dtype).requires_grad_(), torch.arange(num_tokens)[None] >= num_tokens - 3
        for parameter in layer.parameters():
            parameter.main_grad.zero_()
        with cpu_stands_in_for_cuda():
            output, bias = forward(hidden, padding_mask=padding)
            output.backward(gradient.to(dtype))
        assert bias is None
        return [output.detach(), hidden.grad, *(parameter.main_grad.clone() for parameter in layer.parameters())]

    ours = [run(layer), run(layer)]
    again = "moe_act" in megatron.get("recompute_modules", [])
    assert len(activated) == (0 if not isinstance(layer.experts, GroupedExperts) else 4 if again else 2)
    if isinstance(layer.experts, GroupedMLP):
        layer.experts.forward = partial(GroupedMLP.forward, layer.experts)
        layer.experts.activation_recompute = False  # which asks for Transformer Engine there
    return [*ours, run(partial(MoELayer.forward, layer))]


@pytest.mark.parametrize(("num_ranks", "layouts"), [(1, ONE_RANK), (2, TWO_RANKS)])
def test_it_gives_what_megatrons_gives_and_the_same_every_time(
    num_ranks: int, layouts: Mapping[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(CONFIG.read_text())
    assert json.loads(CONFIG.read_text())["hidden_size"] == 64
    for result in run_ranks(layers, num_ranks, tmp_path, layouts, timeout_s=120):
        for name in layouts:
            tolerance = 0.02 if "grouped" in name else 1e-5  # bf16: Megatron-core rounds each of its sums
            first, again, wanted = result[name]
            assert len(first) > 6
            for got, same, want in zip(first, again, wanted, strict=True):
                assert torch.equal(got, same), name
                assert (got - want).abs().max() <= tolerance * want.abs().max(), name
