"""The contract every model plugin keeps: parity with transformers, exact round trips, the same training everywhere.

The sparse model has 16 index heads: with few, all of a query's scores for two keys may be zero, and transformers says
nothing of which it chooses then.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slime_testing import models
from slime_testing.contract import CHECKS, contracts

CONTRACTS = contracts(Path(__file__).parent / "configs")
HF = CONTRACTS["tiny"].hf


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", CONTRACTS)
def test_contract(model: str, check: str) -> None:
    CHECKS[check](CONTRACTS[model])


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [{"q_lora_rank": None}, {"rope_scaling": None}, {"rope_scaling": {**HF["rope_scaling"], "mscale": 0.7}}],
    ids=["whole queries", "unscaled rotary", "scaled sines"],
)
def test_logits_of_variants(change: dict[str, Any], tmp_path: Path) -> None:
    models.write_checkpoint({**HF, **change}, tmp_path)
    models.check_parity("deepseek_v3", tmp_path)
