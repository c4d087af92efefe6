"""Thinking is left out, in every spelling that models have for it."""

from __future__ import annotations

import pytest

from slime.thinking import divided

MARKS = [
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<think>", "</thinking>"),
    ("<Think>", "</Think>"),
    ("<thought>", "</thought>"),
    ("<reasoning>", "</reasoning>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("[THINK]", "[/THINK]"),
    ("◁think▷", "◁/think▷"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
    ("<|channel>thought\n", "<channel|>"),
    ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"),
]


@pytest.mark.parametrize(("opens", "closes"), MARKS)
def test_what_stands_behind_the_last_closed_thought_is_said(opens: str, closes: str) -> None:
    for text in (f"{opens}I try 7.{closes}\n\nIt is 6.", f"I try 7.{closes}It is 6."):
        thinking, said = divided(text)
        assert (thinking, said) == (text.partition(closes)[0] + closes, "It is 6.")
    assert divided(f"{opens}7{closes}5{opens}8{closes}6")[1] == "6"
    assert divided(f"{opens}I try 7.")[1] == "", "it is open"
    assert divided(f"{opens}7{closes}It is 6.{opens}Or 8?")[1] == ""
    assert divided(f"{opens}7{closes}") == (f"{opens}7{closes}", "")


def test_text_without_thinking_is_said() -> None:
    for text in ("", " It is 6.", "I think: a<b, x>y.", "Analysis: 6.", "<answer>6</answer>", "<thinker>"):
        assert divided(text) == ("", text)


def test_a_mark_in_quotes_is_a_word() -> None:
    for text in ("It ends at `</think>`, 6.", "print('<think>')", 'text.split("</think>")'):
        assert divided(text) == ("", text)
    assert divided("<think>Is `</think>` the end? 7")[1] == ""
    assert divided('<think>"7"</think>6')[1] == divided('<think>7</think>"6"')[1].strip('"') == "6"


def test_a_thought_inside_another_does_not_end_it() -> None:
    assert divided("<think><reasoning>7</reasoning> or 8")[1] == ""
    assert divided("<think><reasoning>7</reasoning> or 8</think>6")[1] == "6"
    assert divided("<think><think>7</think>6")[1] == "6", "the prompt had opened it"


def test_channels_without_their_special_tokens() -> None:
    assert divided("analysisI try 7.assistantfinalIt is 6.")[1] == "It is 6."
    assert divided("analysisI try 7.")[1] == ""


@pytest.mark.slow
def test_as_sglang_divides_it() -> None:
    """What its servers call reasoning is thinking here, for every family that it knows but those whose text has marks
    of its own, too."""
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    names = sorted(ReasoningParser.DetectorMap.keys() - {"inkling", "cohere_command4"})
    assert len(names) > 20
    for name in names:
        detector = ReasoningParser.DetectorMap[name]()
        opens, closes = detector.think_start_token, detector.think_end_token
        if closes == "<|end|>":
            closes += "<|start|>assistant<|channel|>final<|message|>"
        for text in (f"{opens}I try 7.{closes}It is 6.", f"{opens}I try 7."):
            whole = text + "<|return|>" * (closes.endswith("<|message|>") and "6" in text)
            said = ReasoningParser.DetectorMap[name]().detect_and_parse(whole).normal_text
            if name != "minimax-append-think":  # which hands thinking on as text
                assert divided(text)[1] == said.strip(), name
