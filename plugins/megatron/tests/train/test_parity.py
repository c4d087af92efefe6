"""Every parallel layout computes what one rank computes: losses, gradient norms and each parameter's gradient.

The layouts of `slime_testing.contract` come with every model plugin; here are the ones beyond them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime_testing.contract import Contract
from slime_testing.ranks import run_ranks
from slime_testing.training import compare, train_layouts

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


@pytest.mark.slow
@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts_equal_one_rank(name: str) -> None:
    layouts: dict[str, dict[str, Any]] = LAYOUTS[name]
    model = Contract(json.loads((CONFIGS / f"{name}.json").read_text()))
    results = run_ranks(train_layouts, 2, model.family, model.folder, layouts)
    for layout in layouts:
        compare(layout, [result[layout] for result in results], model.one_rank)
