"""Where samples share rows, the prediction layer learns what it learns from whole sequences."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from slime_megatron.multi_token_prediction import LEARNS_BY
from slime_testing.models import write_checkpoint
from slime_testing.ranks import run_ranks
from slime_testing.sharing import compare_shared, train_both

CONFIGS = Path(__file__).parents[3] / "models"
TP, PP, EP = (f"{kind}_model_parallel_size" for kind in ("tensor", "pipeline", "expert"))
FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
ONE_RANK: Mapping[str, Any] = {"one rank": {}, "full recomputation": FULL}
TWO_RANKS: Mapping[str, Any] = {"tp2 ep2": {TP: 2, EP: 2}, "pp2": {PP: 2}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "num_ranks", "layouts"),
    [
        ("glm4/tests/configs/lite.json", 1, ONE_RANK),
        ("glm4/tests/configs/moe.json", 2, TWO_RANKS),
        ("glm5/tests/configs/dsa.json", 1, ONE_RANK),
    ],
)
def test_a_step_is_that_of_whole_sequences(
    config: str, num_ranks: int, layouts: Mapping[str, Any], tmp_path: Path
) -> None:
    """The first token of a response is predicted from two tokens of the prompt: by the model and by the layer."""
    write_checkpoint(json.loads((CONFIGS / config).read_text()), tmp_path)
    results = run_ranks(train_both, num_ranks, tmp_path, layouts, {LEARNS_BY: 0.2}, timeout_s=200)
    for layout in layouts:
        compare_shared(layout, [result[layout] for result in results])
        assert results[0][layout][0].metrics["mtp_loss"] > 0
