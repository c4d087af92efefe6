"""Where samples share rows, a step is that of whole sequences: losses, gradients, experts' balance.

`test_router.py` compares routers' losses and balance of whole sequences with transformers'.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slime_megatron.mixture_of_experts.replay import DIFFERS, REPLAYED, ROUTED_EXPERTS
from slime_testing.models import write_checkpoint
from slime_testing.ranks import run_ranks
from slime_testing.sharing import compare_shared, train_both

from .replayed import drawn, routed_experts

pytestmark = pytest.mark.slow

CONFIGS = Path(__file__).parents[3] / "models"
FAMILIES = {
    "softmax": CONFIGS / "qwen3/tests/configs/moe.json",
    "sigmoid": CONFIGS / "glm4/tests/configs/moe.json",
    "latent": CONFIGS / "deepseek-v3/tests/configs/tiny.json",
}
TP, PP, EP = (f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert"))
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
EXPERTS = {"recompute_granularity": "selective", "recompute_modules": ["moe"]}
ONE_RANK: Mapping[str, Any] = {"one rank": {}}
TWO_RANKS: Mapping[str, Any] = {
    "ep2": {EP: 2},
    "ep2 full recomputation": {EP: 2, **FULL},
    "pp2 recomputed experts": {PP: 2, **EXPERTS},
    "tp2 ep2": {TP: 2, EP: 2},
    "tp2 cut experts recomputed": {TP: 2, "expert_tensor_parallel_size": 2, **EXPERTS},
}
BALANCE = {
    "train.megatron.moe_router_load_balancing_type": "aux_loss",
    "train.megatron.moe_aux_loss_coeff": 0.3,
    "train.megatron.moe_z_loss_coeff": 0.02,
}
RATE = {"train.megatron.moe_router_bias_update_rate": 0.01}


def record(trainer: Any, samples: Sequence[Any]) -> list[Any]:
    """With nearly all experts as engines record them: a token has the same ones behind the same tokens."""
    recording, generator, found = routed_experts(trainer.model.traits), np.random.default_rng(3), []
    known: dict[bytes, np.ndarray] = {}
    for sample in samples:
        rows = drawn(recording, sample.num_tokens - 1, generator)
        rows[1:3] = 0
        for place, row in enumerate(rows):
            rows[place] = known.setdefault(sample.tokens[: place + 1].tobytes(), row)
        found.append(dataclasses.replace(sample, recorded={ROUTED_EXPERTS: rows}))
    return found


@pytest.mark.parametrize(
    ("name", "num_ranks", "layouts"),
    [("softmax", 1, ONE_RANK), ("latent", 1, ONE_RANK), ("sigmoid", 2, TWO_RANKS)],
)
def test_a_step_is_that_of_whole_sequences(
    name: str, num_ranks: int, layouts: Mapping[str, Any], tmp_path: Path
) -> None:
    """A prompt that counts once, not for each sample, changes routers' losses by hundredths, and moves other biases."""
    write_checkpoint(json.loads(FAMILIES[name].read_text()), tmp_path)
    settings = BALANCE if name == "softmax" else {**BALANCE, **RATE}
    results = run_ranks(train_both, num_ranks, tmp_path, layouts, settings, record, timeout_s=200)
    for layout in layouts:
        compare_shared(layout, [result[layout] for result in results])
        [whole, _] = results[0][layout]
        assert {"load_balancing_loss", "z_loss", REPLAYED, DIFFERS} < whole.metrics.keys()
        biases = [bias for each, bias in whole.weights.items() if "correction_bias" in each]
        assert bool(biases) == (name != "softmax")
        assert all(bias.any() for bias in biases)
