"""Experts that share two parameters (`moe_grouped_gemm`) load and export byte for byte as single experts do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from slime_testing.models import check_round_trip, write_checkpoint

CONFIG = Path(__file__).parents[4] / "models/glm4/tests/configs/moe.json"
GROUPED = {"moe_grouped_gemm": True, "bf16": True}
LAYOUTS = {
    "dp2": GROUPED,
    "ep2": {**GROUPED, "expert_model_parallel_size": 2},
    "tp2-etp2": {**GROUPED, "tensor_model_parallel_size": 2, "expert_tensor_parallel_size": 2},
}


@pytest.mark.slow
def test_round_trip(tmp_path: Path) -> None:
    hf = json.loads(CONFIG.read_text())
    write_checkpoint(hf, tmp_path, dtype=torch.bfloat16)
    check_round_trip(hf["model_type"], tmp_path, 2, LAYOUTS)
