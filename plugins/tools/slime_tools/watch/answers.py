"""What the page shows of `samples/`: of a step, the best and the worst answer to a prompt; of an evaluation, which has
one answer a prompt, the best answers and the worst."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from slime.contracts import SampleRow
from slime_observers.samples.rows import EVALUATION, STEP, best_and_worst, read_samples

MAX_CHARACTERS = 2000
"""Of a text."""
NUM_PROMPTS = 4
"""Of a step."""
NUM_ANSWERS = 3
"""Of an evaluation: the best, and as many of the worst."""
ABOUT = ("reward", "verdict", "reason", "parts", "finish", "num_tokens", "weight_versions")


def names(folder: Path) -> list[str]:
    """Of the files: `step-000012` or `eval-000012`, oldest first, evaluations before what was trained after them."""
    stems = [path.stem for kind in (EVALUATION, STEP) for path in folder.glob(f"{kind}-*.jsonl")]
    return sorted(stems, key=lambda name: (int(name.partition("-")[2]), name))


def newest(names: Sequence[str]) -> list[str]:
    """The newest of each kind, the step first."""
    return [of_kind[-1] for of_kind in _by_kind(names)]


def first_and_newest(names: Sequence[str]) -> list[str]:
    """Of each kind, for a page that cannot ask for more."""
    return [name for name in names if any(name in (of_kind[0], of_kind[-1]) for of_kind in _by_kind(names))]


def _by_kind(names: Sequence[str]) -> list[list[str]]:
    kinds = [[name for name in names if name.startswith(kind)] for kind in (STEP, EVALUATION)]
    return [of_kind for of_kind in kinds if of_kind]


def shown(path: Path) -> dict[str, Any]:
    """What there is to say of one file: how much it has, and cards of a prompt with one answer or two.

    Raises:
        SlimeError: a line is not a row of samples.
        FileNotFoundError: the run has removed it, for lack of room.
    """
    rows = read_samples(path)
    if path.stem.startswith(EVALUATION):
        cards = _of_evaluation(rows)
    else:
        pairs = best_and_worst(rows, NUM_PROMPTS)
        cards = [_card(pair[0], dict(zip(("best", "worst"), pair, strict=False))) for pair in pairs]
    return {"name": path.stem, "samples": len(rows), "prompts": len({row["prompt"] for row in rows}), "cards": cards}


def _of_evaluation(rows: Sequence[SampleRow]) -> list[dict[str, Any]]:
    """The best, and the worst below the mean."""
    judged = sorted((row for row in rows if row["reward"] is not None), key=lambda row: -float(row["reward"]))
    if not judged:
        return []
    mean = fmean(row["reward"] for row in judged)
    worst = [row for row in reversed(judged) if row["reward"] < mean]
    chosen = {"best": _one_a_prompt(judged), "worst": _one_a_prompt(worst)}
    return [_card(row, {heading: row}) for heading, of_heading in chosen.items() for row in of_heading]


def _one_a_prompt(ranked: Sequence[SampleRow]) -> list[SampleRow]:
    first: dict[str, SampleRow] = {}
    for row in ranked:
        first.setdefault(row["prompt"], row)
    return list(first.values())[:NUM_ANSWERS]


def _card(row: SampleRow, chosen: Mapping[str, SampleRow]) -> dict[str, Any]:
    return {
        "prompt": row["prompt"],
        "label": _text(row.get("label")),
        "filter": row.get("filter", ""),
        "asked": [_message(message) for message in row["messages"]],
        "answers": [{"heading": heading, **_answer(each)} for heading, each in chosen.items()],
    }


def _answer(row: SampleRow) -> dict[str, Any]:
    """With `turns`: what was said after the prompt, by the model and by its tools; of most programs one response."""
    turns = row.get("turns") or [{"role": "assistant", "content": row["response"]}]
    return {name: row.get(name) for name in ABOUT} | {"turns": [_message(turn) for turn in turns]}


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """Who says what; calls of tools, and what else the message has, as JSON."""
    calls = [_text(call) for call in message.get("tool_calls") or ()]
    return {"role": str(message["role"]), "text": _text(message.get("content") or ""), "calls": calls}


def _text(value: Any) -> str:
    """Begin and end, where a question is asked and an answer stands."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    half = MAX_CHARACTERS // 2
    return text if len(text) <= MAX_CHARACTERS else f"{text[:half]}\n[...]\n{text[-half:]}"
