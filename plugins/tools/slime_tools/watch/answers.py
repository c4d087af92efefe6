"""What the page shows of `samples/`: of a step, the best and the worst answer to a prompt; of an evaluation, which has
one answer a prompt, the best answers and the worst."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
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
NUM_FOUND = 20
"""Prompts of a search."""
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


@dataclass(frozen=True)
class Wanted:
    """Which samples a reader looks for.

    Attributes:
        text: that the prompt or the response contains, whatever the case of its letters.
        least, most: bounds of the reward; None: none.
    """

    text: str = ""
    least: float | None = None
    most: float | None = None

    def has(self, row: SampleRow) -> bool:
        reward = row["reward"]
        if (self.least, self.most) != (None, None):
            bounds = (-math.inf if self.least is None else self.least, math.inf if self.most is None else self.most)
            if reward is None or not bounds[0] <= reward <= bounds[1]:
                return False
        said = [*row["messages"], {"content": row["response"]}, *(row.get("turns") or ())]
        return not self.text or any(self.text.lower() in str(each.get("content")).lower() for each in said)


EVERYTHING = Wanted()


def shown(paths: Sequence[Path], wanted: Wanted = EVERYTHING) -> dict[str, Any]:
    """What there is to say of files: how much they have, and cards of a prompt with one answer or two. Of what is
    looked for, or of several files, the first `NUM_FOUND` prompts that have it; `samples` and `prompts` count those.

    Raises:
        SlimeError: a line is not a row of samples.
        FileNotFoundError: the run has removed it, for lack of room.
    """
    if len(paths) == 1 and wanted == EVERYTHING:
        rows, path = read_samples(paths[0]), paths[0]
        cards = _of_evaluation(rows) if path.stem.startswith(EVALUATION) else _best_and_worst(rows, NUM_PROMPTS)
        return _told(rows, [{**each, "name": path.stem} for each in cards])
    found, cards = list[SampleRow](), list[dict[str, Any]]()
    for path in paths:
        rows = [row for row in read_samples(path) if wanted.has(row)]
        found += rows
        cards += [{**each, "name": path.stem} for each in _best_and_worst(rows, NUM_FOUND)]
        if len(cards) >= NUM_FOUND:
            break
    return _told(found, cards[:NUM_FOUND])


def same_prompt(path: Path, prompt: str, other: Path) -> dict[str, Any]:
    """The card of a prompt of `path`, by its id there, with the answers that `other` has to the same messages."""
    asked = next((row["messages"] for row in read_samples(path) if row["prompt"] == prompt), None)
    rows = [row for row in read_samples(other) if row["messages"] == asked]
    return _told(rows, [{**each, "name": other.stem} for each in _best_and_worst(rows, 1)])


def demonstrations(path: Path) -> dict[str, Any]:
    """Cards of what supervised steps show the model (`slime_tools.watch.diary`)."""
    rows = json.loads(path.read_bytes())
    cards = []
    for row in rows:
        answers = [{"heading": heading, "turns": [_message(said)]} for heading, said in row["answers"].items()]
        asked = [_message(message) for message in row["messages"]]
        cards.append({"prompt": row["where"], "name": path.stem, "asked": asked, "answers": answers})
    return {"samples": len(rows), "prompts": len(rows), "cards": cards}


def _told(rows: Sequence[SampleRow], cards: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"samples": len(rows), "prompts": len({row["prompt"] for row in rows}), "cards": cards}


def _best_and_worst(rows: Iterable[SampleRow], num_prompts: int) -> list[dict[str, Any]]:
    pairs = best_and_worst(rows, num_prompts)
    return [_card(pair[0], dict(zip(("best", "worst"), pair, strict=False))) for pair in pairs]


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
