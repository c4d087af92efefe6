"""Every parallel layout computes what one rank computes: losses, gradient norms and each parameter's gradient.

The layouts of `slime_testing.contract` come with every model plugin; here are the ones beyond them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slime.models.traits import Traits
from slime.types import TrainSample
from slime_testing.contract import Contract
from slime_testing.ranks import run_ranks
from slime_testing.recorded import narrowed
from slime_testing.training import compare, train_layouts

VOCAB_SIZE = 128
CONFIGS = Path(__file__).parents[3] / "models/glm4/tests/configs"
RECOMPUTE = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LAYOUTS = {
    "dense": {"dp2": {}, "dp2-overlap": {}, "dp2-recompute": RECOMPUTE},
    "moe": {  # with a multi-token prediction layer
        "dp2-recompute": RECOMPUTE,
        "pp2-overlap-recompute": {"pipeline_model_parallel_size": 2, **RECOMPUTE},
        "pp2-vpp2": {"pipeline_model_parallel_size": 2, "virtual_pipeline_model_parallel_size": 2},
        "tp2-etp2": {"tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 2},
    },
}


NARROW: dict[str, dict[str, Any]] = {
    "tp2": {"tensor_model_parallel_size": 2},
    "cp2": {"context_parallel_size": 2},
    "pp2": {"pipeline_model_parallel_size": 2},
    "dp2": {},
}


def kept(samples: list[TrainSample], traits: Sequence[Traits]) -> list[TrainSample]:
    return narrowed(samples, VOCAB_SIZE)


@pytest.mark.slow
def test_layouts_equal_one_rank_among_kept_tokens() -> None:
    model = Contract(json.loads((CONFIGS / "dense.json").read_text()))
    assert model.hf["vocab_size"] == VOCAB_SIZE
    [alone] = run_ranks(train_layouts, 1, model.family, model.folder, {"one rank": {}}, kept)
    results = run_ranks(train_layouts, 2, model.family, model.folder, NARROW, kept)
    for layout in NARROW:
        compare(layout, [result[layout] for result in results], alone["one rank"])
    entropies = [values["entropy"] for values in alone["one rank"].history]
    assert max(entropies) < min(values["entropy"] for values in model.one_rank.history), "of few tokens"


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_equal_one_rank(name: str) -> None:
    layouts: dict[str, dict[str, Any]] = LAYOUTS[name]
    model = Contract(json.loads((CONFIGS / f"{name}.json").read_text()))
    results = run_ranks(train_layouts, 2, model.family, model.folder, layouts)
    for layout in layouts:
        compare(layout, [result[layout] for result in results], model.one_rank)
