"""What keeps and what breaks each constraint, written out from the definitions of IFEval (Zhou et al. 2023)."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from slime.types import VerdictKind
from slime_rewards.general.ifeval import CHECKS, ConstraintsReward, sentences
from slime_testing.plugins import sample

SECTIONS = {"section_spliter": "SECTION", "num_sections": 2}
FIRST = {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "However"}
LONG = "This is a sentence in English that says nothing of interest to anyone"
CASES: list[tuple[str, dict[str, Any], str, str]] = [
    ("length_constraints:number_words", {"relation": "at least", "num_words": 3}, "a well-known", "well known"),
    ("length_constraints:number_words", {"relation": "less than", "num_words": 3}, "don't", "don't go"),
    ("length_constraints:number_sentences", {"relation": "less than", "num_sentences": 2}, "One.", "One. Two."),
    ("length_constraints:number_sentences", {"relation": "at least", "num_sentences": 2}, "A? B!", "Dr. A. Smith"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "a\n***\nb", "a\n\nb"),
    ("length_constraints:number_paragraphs", {"num_paragraphs": 2}, "***\na\n***\nb", "a\n***\n***\nb"),
    ("length_constraints:nth_paragraph_first_word", FIRST, 'So.\n\n"However, no.', "However.\n\nSo."),
    ("length_constraints:nth_paragraph_first_word", FIRST, "So.\n\nhowever! no.", "So.\n\nHowever.\n\nNo."),
    ("keywords:existence", {"keywords": ["red", "blue"]}, "Redder and BLUE", "green and blue"),
    ("keywords:existence", {"keywords": ["colou?r"]}, "color", "colr"),
    ("keywords:forbidden_words", {"forbidden_words": ["red"]}, "redder", "It is Red-ish."),
    ("keywords:frequency", {"keyword": "red", "relation": "at least", "frequency": 2}, "redder, red", "red"),
    ("keywords:frequency", {"keyword": "red", "relation": "less than", "frequency": 2}, "red", "redder, red"),
    ("keywords:letter_frequency", {"letter": "a", "let_relation": "less than", "let_frequency": 2}, "cat", "mAma"),
    ("keywords:letter_frequency", {"letter": "!", "let_relation": "at least", "let_frequency": 2}, "no!!", "no!"),
    ("language:response_language", {"language": "de"}, "Das ist ein Satz auf Deutsch, mehr nicht.", LONG),
    ("language:response_language", {"language": "hi"}, "यह एक हिंदी वाक्य है।", LONG),
    ("change_case:capital_word_frequency", {"capital_relation": "at least", "capital_frequency": 1}, "NO", "No"),
    ("change_case:capital_word_frequency", {"capital_relation": "less than", "capital_frequency": 1}, "No", "A-B"),
    ("change_case:english_capital", {}, LONG.upper(), LONG),
    ("change_case:english_lowercase", {}, LONG.lower(), "das ist ein satz auf deutsch, mehr ist es nicht."),
    ("startend:end_checker", {"end_phrase": "The end."}, 'so: "the end."', "The end. No."),
    ("startend:quotation", {}, '"all"', '"all" of it'),
    ("detectable_format:number_bullet_lists", {"num_bullets": 2}, "* a\n- b", "* a"),
    ("detectable_format:number_bullet_lists", {"num_bullets": 1}, "* a\n**b**", "* a\n  * b"),
    ("detectable_format:number_highlighted_sections", {"num_highlights": 1}, "*so*", "**"),
    ("detectable_format:title", {}, "<<A tale>>\nonce", "<< >>"),
    ("detectable_format:json_format", {}, "```json\n[1]\n```", "[1"),
    ("detectable_format:constrained_response", {}, "So: My answer is no.", "my answer is no"),
    ("detectable_format:multiple_sections", SECTIONS, "SECTION 1\na\nSECTION 2\nb", "SECTION 1\na\nSECTION\nb"),
    ("detectable_content:number_placeholders", {"num_placeholders": 2}, "to [name] [x]", "to [name]"),
    ("detectable_content:postscript", {"postscript_marker": "P.S."}, "bye\np. s. so", "bye"),
    ("detectable_content:postscript", {"postscript_marker": "P.P.S"}, "bye\nP. P. S so", "bye P.S."),
    ("combination:two_responses", {}, "one\n******\ntwo", "one\n******\none"),
    ("combination:two_responses", {}, "******one******two******", "one ****** two ****** three"),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Write a poem. "},
        "write a poem.\nRoses",
        "Roses. Write a poem.",
    ),
    ("punctuation:no_comma", {}, "none", "one, two"),
]
PUBLISHED = """keywords:existence keywords:frequency keywords:forbidden_words keywords:letter_frequency
language:response_language length_constraints:number_sentences length_constraints:number_paragraphs
length_constraints:number_words length_constraints:nth_paragraph_first_word detectable_content:number_placeholders
detectable_content:postscript detectable_format:number_bullet_lists detectable_format:constrained_response
detectable_format:number_highlighted_sections detectable_format:multiple_sections detectable_format:json_format
detectable_format:title combination:two_responses combination:repeat_prompt startend:end_checker
change_case:capital_word_frequency change_case:english_capital change_case:english_lowercase punctuation:no_comma
startend:quotation"""


@pytest.mark.parametrize(("kind", "given", "kept", "broken"), CASES)
def test_a_constraint_holds_or_not(kind: str, given: dict[str, Any], kept: str, broken: str) -> None:
    assert CHECKS[kind](kept, given)
    assert not CHECKS[kind](broken, given)


def test_all_kinds_are_there_and_tried() -> None:
    assert set(CHECKS) == set(PUBLISHED.split()) == {kind for kind, *_ in CASES}


@pytest.mark.parametrize(
    ("text", "count"),
    [("", 0), ("One", 1), ('He said: "No." I left.', 2), ("It is 3.5 km, e.g. here.", 1), ("What?! Yes... no.", 3)],
)
def test_sentences(text: str, count: int) -> None:
    assert sentences(text) == count


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("keywords:existence", {"keywords": "red"}),
        ("keywords:frequency", {"keyword": "(", "frequency": 1}),
        ("keywords:frequency", {"keyword": "a", "relation": "more than", "frequency": 1}),
        ("length_constraints:number_words", {"num_words": None}),
        ("combination:repeat_prompt", {}),
    ],
)
def test_keywords_that_do_not_fit_are_no_verdict(kind: str, given: dict[str, Any]) -> None:
    columns = {"instruction_id_list": [kind], "kwargs": [given]}
    verdict = ConstraintsReward().score(sample("a", None, columns))
    assert verdict.kind is VerdictKind.INVALID
    assert "'kwargs' does not fit its constraint" in verdict.reason


def test_without_a_detector_a_language_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"instruction_id_list": ["language:response_language"], "kwargs": [{"language": "en"}]}
    assert ConstraintsReward().score(sample(LONG, None, columns)).value == 1.0
    monkeypatch.setitem(sys.modules, "langdetect", None)
    assert "slime-rewards[languages]" in ConstraintsReward().score(sample(LONG, None, columns)).reason
