"""Rows of a prompt and of a response, told by two engines, become what one engine tells; test_pairs_rows.py has
SGLang's own."""

from __future__ import annotations

from typing import Any

import pytest

from slime.engine_client.client import Completion, FinishReason
from slime_sglang.engine.driver.pairs import with_prompt_rows
from slime_sglang.engine.frames import ROWS

OF_PROMPT, OF_RESPONSE = bytes(range(1, 13)), bytes(range(101, 113))
"""Of six bytes a row: of two tokens of a prompt, and of the first two of three that were generated."""


def joined(of_prefill: bytes | None, of_decode: bytes | None, num_tokens: int) -> Completion:
    def meta(rows: bytes | None) -> dict[str, Any]:
        return {"id": "1"} if rows is None else {"id": "1", ROWS: rows}

    tokens = list(range(num_tokens))
    decoded = Completion(tokens, [-0.5] * num_tokens, FinishReason.LENGTH, 3, 0, 0, meta=meta(of_decode))
    return with_prompt_rows(decoded, meta(of_prefill), 2)


@pytest.mark.parametrize("num_tokens", [2, 3])
def test_rows_stand_in_the_order_of_tokens(num_tokens: int) -> None:
    of_decode = OF_RESPONSE[: 6 * (num_tokens - 1)]
    answer = joined(OF_PROMPT, of_decode, num_tokens)
    assert answer.meta == {"id": "1", ROWS: OF_PROMPT + of_decode}
    assert answer.tokens == list(range(num_tokens))


@pytest.mark.parametrize("of_decode", [None, b""])
def test_a_response_of_one_token_has_the_rows_of_its_prompt(of_decode: bytes | None) -> None:
    """SGLang's decode engine collects nothing of a request that ends with its first token."""
    assert joined(OF_PROMPT, of_decode, 1).meta == {"id": "1", ROWS: OF_PROMPT}


@pytest.mark.parametrize(
    ("of_prefill", "of_decode", "expected"),
    [(None, OF_RESPONSE, bytes(12) + OF_RESPONSE), (OF_PROMPT, None, OF_PROMPT + bytes(12))],
)
def test_rows_that_one_of_the_two_did_not_tell_are_zeros(
    of_prefill: bytes | None, of_decode: bytes | None, expected: bytes
) -> None:
    assert joined(of_prefill, of_decode, 3).meta[ROWS] == expected


@pytest.mark.parametrize(
    ("of_prefill", "of_decode", "num_tokens"),
    [(None, None, 3), (None, b"", 1), (OF_PROMPT, None, 0)],
)
def test_without_any_row_nothing_is_told(of_prefill: bytes | None, of_decode: bytes | None, num_tokens: int) -> None:
    assert joined(of_prefill, of_decode, num_tokens).meta == {"id": "1"}


def test_a_wrong_number_of_rows_stays_wrong_for_who_reads_them() -> None:
    assert len(joined(OF_PROMPT, OF_RESPONSE[:6], 3).meta[ROWS]) == 3 * 6, "not the 4 rows of 5 tokens"
