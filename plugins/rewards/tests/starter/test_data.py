"""The generated prompt sets: what is committed is what their programs write, nothing held out is trained on."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from itertools import permutations, product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import slime_rewards.starter
from slime.compose.compose import examine
from slime_testing.patience import run_within

DATA = Path(slime_rewards.starter.__file__).with_name("data")
SETS = ("word-problems", "countdown", "reverse-text")


def rows(name: str, part: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (DATA / f"{name}-{part}.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", SETS)
def test_the_program_writes_what_is_committed(name: str, tmp_path: Path) -> None:
    module = f"slime_rewards.starter.data.{name.replace('-', '_')}"
    run_within(100, [sys.executable, "-m", module, "--out", tmp_path])
    written = sorted(tmp_path.iterdir())
    parts = ["heldout", "train", *(["worked"] if name == "word-problems" else [])]
    assert [path.name for path in written] == [f"{name}-{part}.jsonl" for part in parts]
    for path in written:
        assert path.read_bytes() == (DATA / path.name).read_bytes()


@pytest.mark.parametrize("name", SETS)
def test_no_held_out_prompt_is_trained_on(name: str) -> None:
    trained = Counter(row["prompt"][0]["content"] for row in rows(name, "train"))
    held_out = Counter(row["prompt"][0]["content"] for row in rows(name, "heldout"))
    assert not trained & held_out
    assert max((trained + held_out).values()) == 1


def test_every_step_of_a_worked_answer_is_right() -> None:
    """Calculated by Python from the written text, not by the program that wrote it."""
    labels = {row["prompt"][0]["content"]: row["label"] for row in rows("word-problems", "train")}
    worked = rows("word-problems", "worked")
    assert len(worked) == 1024
    for row in worked:
        question, answer = (message["content"] for message in row["messages"])
        steps, end = answer.removesuffix(".").split(". The answer is ")
        assert end == labels[question]
        for chain in re.split(r"\. |, so ", steps):
            values = {eval(part.replace(" x ", " * ")) for part in chain.split(" = ")}
            assert len(values) == 1, answer
        assert values == {int(end)}


def test_a_countdown_of_three_numbers_has_a_solution() -> None:
    """Found by trying every expression, not by the program's own draw."""
    for row in [row for row in rows("countdown", "heldout") if len(row["label"]["numbers"]) == 3][:20]:
        assert any(solves(numbers, row["label"]["target"]) for numbers in permutations(row["label"]["numbers"]))


def solves(numbers: tuple[int, ...], target: int) -> bool:
    a, b, c = numbers
    shapes = ("({a}{o}{b}){p}{c}", "{a}{o}({b}{p}{c})")
    for shape, o, p in product(shapes, "+-*/", "+-*/"):
        try:
            if eval(shape.format(a=a, b=b, c=c, o=o, p=p)) == target:
                return True
        except ZeroDivisionError:
            continue
    return False


def gsm8k(folder: Path, **columns: list[str]) -> None:
    """Both files of openai/gsm8k, where `hf download` puts them."""
    place = folder / "openai/gsm8k/main"
    place.mkdir(parents=True, exist_ok=True)
    for split in ("train", "test"):
        pq.write_table(pa.table(columns), place / f"{split}-00000-of-00001.parquet")


def test_gsm8k_is_read_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns of text, the label with its calculation; a file without them is refused by its first row."""
    monkeypatch.chdir(tmp_path)
    words = ["+model=glm4-tiny", "+cluster=local", "task=gsm8k", "rollout.sampling.max_response_tokens=64"]
    words += ["rollout.max_prompt_tokens=256", "eval.sampling.max_response_tokens=64"]
    question, answer = "Ann has 3 pens and buys 4. How many?", "She has 3+4=<<3+4=7>>7 pens.\n#### 7"
    gsm8k(tmp_path, question=[question] * 3, answer=[answer] * 3)
    assert examine(words).problems == []
    gsm8k(tmp_path, problem=[question] * 3, answer=[answer] * 3)
    assert ["has no key 'question'" in problem.what for problem in examine(words).problems] == [True, True]
