"""A size that cannot be: the message names the nearest that can."""

from __future__ import annotations

import pytest

from slime.compose.compose import examine

NINE = ["+model=glm4-9b", "+cluster=h100x8"]


@pytest.mark.parametrize(
    ("words", "todo"),
    [
        (["train.megatron.tensor_model_parallel_size=3"], "Set train.megatron.tensor_model_parallel_size="),
        (["train.megatron.context_parallel_size=3"], "Set "),
    ],
)
def test_what_the_message_names_is_taken(words: list[str], todo: str) -> None:
    first = examine([*NINE, *words]).problems[0]
    assert first.todo.startswith(todo)
    named = dict(word.split("=") for word in [*words, *first.todo.rstrip(".").split()[1:]])
    assert examine([*NINE, *(f"{key}={value}" for key, value in named.items())]).problems == []
