import json
from pathlib import Path

import pytest

from slime.__main__ import main
from slime_testing.plugins import SHOWN
from slime_testing.verbs import check_verb


def test_contract() -> None:
    check_verb("lengths")


def test_means(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "samples").mkdir()
    rows = [{**row, "num_tokens": tokens} for row, tokens in zip(SHOWN, (2, 5), strict=True)]
    (tmp_path / "samples/step-000001.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert main(["lengths", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "step-000001 3.5\n"


def test_no_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lengths", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"slime: {tmp_path}: there are no samples.")
