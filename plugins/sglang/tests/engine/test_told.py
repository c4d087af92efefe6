"""A number of each sampled token: where it stands among the tokens of a segment, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from slime.errors import SlimeError
from slime.segments import Rows
from slime_sglang.engine.told import Told


def answer(*numbers: float, count: int | None = None) -> dict[str, Any]:
    return {"numbers": numbers, "output_token_logprobs": [(-1.0, 5, None)] * (len(numbers) if count is None else count)}


TOLD = Told("numbers", {}, lambda meta: meta["numbers"], refused={"speculative_algorithm": "drafts have none"})


def values(rows: Rows | None) -> list[float]:
    assert rows is not None
    assert (rows.dtype, len(rows.data)) == ("<f4", 4 * rows.shape[0])
    found: list[float] = np.frombuffer(rows.data, rows.dtype).tolist()
    return found


def test_numbers_stand_at_their_tokens() -> None:
    """Two tokens behind a prompt of three; then one that a program wrote, and two more."""
    first = TOLD.read(answer(0.5, 0.25), [1, 2, 3, 11, 12])
    assert values(first) == [0, 0, 0, 0.5, 0.25]
    assert values(TOLD.read(answer(2, -1), [1, 2, 3, 11, 12, 4, 13, 14], first)) == [0, 0, 0, 0.5, 0.25, 0, 2, -1]


def test_an_answer_without_tokens_changes_nothing() -> None:
    first = TOLD.read(answer(0.5), [1, 11])
    assert TOLD.read({}, [1, 11], first) is first
    assert TOLD.read({}, [1]) is None


@pytest.mark.parametrize(
    ("meta", "what"),
    [
        (answer(1, 2, count=3), "of an answer with 3 tokens it read 2 numbers, 2 finite"),
        (answer(1, float("nan")), "of an answer with 2 tokens it read 2 numbers, 1 finite"),
    ],
)
def test_anything_but_a_finite_number_for_each_token_is_refused(meta: dict[str, Any], what: str) -> None:
    with pytest.raises(SlimeError, match=f"recording 'numbers': {what}"):
        TOLD.read(meta, [1, 11, 12, 13])


def test_fields_that_it_does_not_go_with_are_told() -> None:
    assert list(TOLD.problems({}, {"speculative_algorithm": "EAGLE"})) == ["drafts have none"]
    assert list(TOLD.problems({}, {"speculative_algorithm": None, "tp_size": 2})) == []
