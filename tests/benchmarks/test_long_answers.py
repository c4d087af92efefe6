"""docs/critic.md shows what was measured, of runs that slime accepts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import compose
from tests.headers import write_headers

ROOT = Path(__file__).parents[2]


def rows(file: str, ways: Any) -> dict[str, list[float]]:
    """Way -> reward of each step."""
    lines = [line.strip("| ").split(" | ") for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    return {way: [*map(float, steps)] for way, *steps in lines if way in ways}


def test_the_page_has_the_rows_that_were_measured(program: Any) -> None:
    measured = rows("benchmarks/results/long-answers.md", program.WAYS)
    assert rows("docs/critic.md", program.WAYS) == measured
    assert measured.keys() == program.WAYS.keys()
    assert {len(steps) for steps in measured.values()} == {len(program.STEPS)}
    whole, *faded = (steps[-1] for steps in measured.values())
    assert whole > 0.8
    assert max(faded) < 0.3


def test_what_is_learnt_begins_and_ends_a_thousand_tokens_apart(program: Any, tmp_path: Path) -> None:
    program.prepare(tmp_path)
    answers = [json.loads(row)["messages"][1]["content"] for row in (tmp_path / "demonstrations.jsonl").open()]
    assert {answer[0] for answer in answers} == {*program.LETTERS}
    assert {*"".join(answer[1:] for answer in answers)} == {"."}
    assert {len(answer) > program.NUM_TOKENS for answer in answers} == {True}, "none has an end within the limit"
    score: dict[str, Any] = {}
    exec((tmp_path / "first.py").read_text(), score)
    assert [score["score"](f"{letter}.....") for letter in program.LETTERS] == [True] + [False] * 5


def test_its_runs_are_accepted(program: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert compose(list(program.DEMONSTRATED)).sft.num_steps == 100
    model = Path(shutil.copytree("tiny", "model"))
    write_headers(model)
    for way, words in program.WAYS.items():
        cfg = compose([*program.REINFORCED, *words, f"model.path={model}"])
        assert cfg.rollout.sampling.max_response_tokens == program.NUM_TOKENS
        lambdas = [cfg.algo.advantage_options.get(f"{whose}_lambda", 1.0) for whose in ("gae", "critic")]
        assert lambdas == {"lambda 1": [1, 1], "lambda 0.95": [0.95, 0.95]}.get(way, [0.95, 1])
