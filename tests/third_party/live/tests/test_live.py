import json
from pathlib import Path

from slime_testing.plugins import check_subscriber


def test_contract(tmp_path: Path) -> None:
    check_subscriber("live", tmp_path)
    state = {"run": "told", "stage": "rl", "step": 1, "total": 1, "phase": "failed", "reward": 0.25}
    assert json.loads((tmp_path / "live.json").read_text()) == state
