"""Programs read what a model says behind its thinking, whatever it says there."""

from __future__ import annotations

import pytest

from slime_agents.conversations.thinking import parted


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("It is 6.", ("", "", "It is 6.")),
        (" <think>\nwhy\n</think>\n\n6", ("why", "</think>", "\n\n6")),
        ("why\n</think>6", ("why", "</think>", "6")),
        ("[THINK]why[/THINK]6", ("why", "[/THINK]", "6")),
        ("<think>why", ("", "", "<think>why")),
        ("<think>a</think>b<think>c</think>d", ("a</think>b<think>c", "</think>", "d")),
        ("<think>a</think>write('<thinking> or </thinking>')", ("a", "</think>", "write('<thinking> or </thinking>')")),
        ("<think>as <reasoning>7</reasoning></think>6", ("as <reasoning>7</reasoning>", "</think>", "6")),
        ("as <reasoning>7</reasoning></think>6", ("as <reasoning>7</reasoning>", "</think>", "6")),
        ("Tags: <thought>7</thought> 6", ("", "", "Tags: <thought>7</thought> 6")),
        ('<think>a</think>{"words": "</think>"}', ("a", "</think>", '{"words": "</think>"}')),
    ],
)
def test_what_a_program_reads_stands_behind_the_thought_that_was_ended(text: str, parts: tuple[str, str, str]) -> None:
    assert parted(text) == parts
