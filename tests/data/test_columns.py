"""Columns of the data set that an objective reads: what rows may hold there, and what samples have of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slime.algo.stages import made_by, with_columns
from slime.config.schema import DataConfig
from slime.data.demonstrations import DemonstrationSource
from slime.data.mix import PromptMix
from slime.data.tokenize import Tokenizer
from slime.errors import SlimeError
from slime.objective import Column, Source
from slime.types import TrainSample

Write = Callable[..., Path]
QUESTION = {"role": "user", "content": "12+34="}


class Weighted:
    """What is asked of an objective before its loss is."""

    needs = (Column("weight", Source.data), Column("advantages"))


class Sums(Weighted):
    """Makes a column of what else the row holds."""

    makes: Collection[str] = ("sum",)

    def make_columns(self, samples: Sequence[TrainSample]) -> list[TrainSample]:
        return [each.with_columns(sum=each.columns["weight"] + sum(each.row["notes"])) for each in samples]


def jsonl(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def answered(**columns: Any) -> dict[str, Any]:
    """46 and the end token are three tokens."""
    return {"messages": [QUESTION, {"role": "assistant", "content": "46"}], **columns}


def pair(**columns: Any) -> dict[str, Any]:
    return {"prompt": "12+34=", "chosen": "46", "rejected": "4", **columns}


def demonstrations(path: Path, tokenizer: Tokenizer, **options: Any) -> DemonstrationSource:
    return DemonstrationSource(path, tokenizer, seed=3, max_tokens=64, data=DataConfig(), **options)


def test_a_number_is_of_all_tokens_and_a_list_has_one_for_each(write: Write, tokenizer: Tokenizer) -> None:
    source = demonstrations(write(jsonl(answered(weight=2), answered(weight=[0.5, -1, 3]))), tokenizer)
    source.check_columns(["weight"])
    objective: Any = Weighted()
    scalar, listed = with_columns(objective, source.all())
    np.testing.assert_array_equal(scalar.columns["weight"], np.float32([2, 2, 2]))
    np.testing.assert_array_equal(listed.columns["weight"], np.float32([0.5, -1, 3]))
    assert made_by(objective) == ("weight",)


def test_both_answers_of_a_pair_have_its_number(write: Write, tokenizer: Tokenizer) -> None:
    source = demonstrations(write(jsonl(pair(weight=0.25))), tokenizer, pairs=True)
    source.check_columns(["weight"])
    objective: Any = Weighted()
    found = [
        (set(each.columns["preference"]), each.columns["weight"]) for each in with_columns(objective, source.all())
    ]
    assert [(sign, values.tolist()) for sign, values in found] == [({1.0}, [0.25] * 3), ({-1.0}, [0.25] * 2)]


def test_what_else_a_row_holds_is_there_for_columns_of_its_own(write: Write, tokenizer: Tokenizer) -> None:
    source = demonstrations(write(jsonl(answered(weight=1, notes=[3, 4], label="x"))), tokenizer)
    objective: Any = Sums()
    [sample] = with_columns(objective, source.all())
    assert sample.row == {"weight": 1, "notes": [3, 4], "label": "x"}, "all but the conversation"
    assert sample.columns["sum"].tolist() == [8, 8, 8]
    assert made_by(objective) == ("weight", "sum")


BAD: dict[str, tuple[Any, str]] = {
    "another name": (
        answered(wieght=1),
        "line 2: the row has no column 'weight', which the objective reads. Did you mean",
    ),
    "none at all": (
        answered(),
        "line 2: the row has no column 'weight', which the objective reads. Give every row such",
    ),
    "text": (answered(weight="1"), "line 2: 'weight' has text where the objective reads a number"),
    "null": (answered(weight=None), "line 2: 'weight' has null where the objective reads a number"),
    "a boolean": (answered(weight=True), "line 2: 'weight' has a boolean where"),
    "not a number": (answered(weight=float("nan")), "line 2: 'weight' has nan where"),
    "infinite": (answered(weight=[1, float("inf"), 1]), "line 2: 'weight' has inf where"),
    "too large for fp32": (answered(weight=10**39), "line 2: 'weight' has 1000"),
    "text in a list": (answered(weight=[1, "2", 3]), "line 2: 'weight' has text where"),
    "a list in a list": (answered(weight=[[1], [2], [3]]), "line 2: 'weight' has a list where"),
    "too few": (answered(weight=[1, 2]), "line 2: 'weight' has 2 numbers, and the answer 3 tokens with its end token"),
    "a list of one": (answered(weight=[1]), "line 2: 'weight' has 1 numbers, and the answer 3 tokens"),
    "an empty list": (answered(weight=[]), "line 2: 'weight' has 0 numbers, and the answer 3 tokens"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_row_without_its_number_is_named(write: Write, tokenizer: Tokenizer, name: str) -> None:
    row, told = BAD[name]
    source = demonstrations(write(jsonl(answered(weight=1), row)), tokenizer)
    source.check_columns([])
    with pytest.raises(SlimeError) as caught:
        source.check_columns(["weight"])
    assert f"rows.jsonl {told}" in str(caught.value)


def test_a_list_is_no_number_of_a_pair_or_of_a_prompt(write: Write, tokenizer: Tokenizer) -> None:
    told = "line 1: 'weight' has a list where the objective reads a number"
    with pytest.raises(SlimeError, match=told):
        demonstrations(write(jsonl(pair(weight=[1, 2, 3]))), tokenizer, pairs=True).check_columns(["weight"])
    rows = write(jsonl({"prompt": "12+34=", "label": "46", "weight": [1, 2, 3]}))
    with pytest.raises(SlimeError, match=told):
        PromptMix(DataConfig(path=str(rows)), tokenizer, 1, 64).check_columns(["weight"])


def test_every_set_of_prompts_has_the_column(write: Write, tokenizer: Tokenizer) -> None:
    from slime.config.schema import TrainSetConfig

    row = {"prompt": "12+34=", "label": "46"}
    main, other = write(jsonl({**row, "weight": 1})), write(jsonl({**row, "Weight": 1}), "other.jsonl")
    sets = {"prompt_key": "prompt", "label_key": "label", "system_prompt": None}
    data = DataConfig(path=str(main), sets={"other": TrainSetConfig(path=str(other), **sets)})
    with pytest.raises(SlimeError, match=r"other\.jsonl line 1: the row has no column 'weight', .* mean 'Weight'\?"):
        PromptMix(data, tokenizer, 1, 64).check_columns(["weight"])
    PromptMix(DataConfig(path=str(main)), tokenizer, 1, 64).check_columns(["weight"])


def test_prompt_and_label_are_no_columns(write: Write, tokenizer: Tokenizer) -> None:
    rows = write(jsonl({"prompt": "12+34=", "label": 46, "level": 1}))
    with pytest.raises(SlimeError, match=r"the row has no column 'label', .* Choose one of: level"):
        PromptMix(DataConfig(path=str(rows)), tokenizer, 1, 64).check_columns(["label"])
