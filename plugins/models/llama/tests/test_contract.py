"""The contract every model plugin keeps: parity with transformers, exact round trips, the same training everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime_testing.contract import CHECKS, contracts

CONTRACTS = contracts(Path(__file__).parent / "configs")


@pytest.mark.slow
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", CONTRACTS)
def test_contract(model: str, check: str) -> None:
    CHECKS[check](CONTRACTS[model])
