"""A response without its thinking, as rewards read it: a thought is not an answer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slime.types import Sample

_MARKS = (
    (r"<(?:\w+:)?think(?:ing)?>", r"</(?:\w+:)?think(?:ing)?>"),
    (r"<(?:\w+:)?thoughts?>", r"</(?:\w+:)?thoughts?>"),
    (r"<(?:\w+:)?reasoning>", r"</(?:\w+:)?reasoning>"),
    (r"\[THINK\]", r"\[/THINK\]"),
    (r"◁think▷", r"◁/think▷"),
    (r"<\|begin_of_thought\|>", r"<\|end_of_thought\|>"),
    (r"<\|START_THINKING\|>", r"<\|END_THINKING\|>"),
    (r"<\|inner_prefix\|>", r"<\|inner_suffix\|>"),
    (r"<\|channel>(?:thought)?", r"<channel\|>"),
    (r"<\|channel\|>(?:analysis|commentary)[^<]{0,80}<\|message\|>", r"<\|channel\|>final[^<]{0,80}<\|message\|>"),
    (r"\Aanalysis(?=[A-Z])", r"assistantfinal(?=\S)"),
)
"""How models open and close their thinking: by tags, by special tokens, by channels, and by what is left of channels
without their special tokens."""
_MARK = re.compile(
    "|".join(f"(?P<o{kind}>{opens})|(?P<c{kind}>{closes})" for kind, (opens, closes) in enumerate(_MARKS)),
    re.IGNORECASE,
)
_QUOTES = "`'\""


def said(sample: Sample) -> str:
    """The text that a sample's response says, see `divided`."""
    return divided(sample.response)[1]


def divided(text: str) -> tuple[str, str]:
    """The thinking of a text, and what it says: the part after the last mark that closes a thought, which the prompt
    may have opened; nothing where a thought stays open. A mark in quotes is a word of the text."""
    end, are_open = 0, set[str]()
    for name, found in marks(text):
        if name[0] == "o":
            are_open.add(name[1:])
        else:
            are_open.discard(name[1:])
            end = found.end()
    return text[:end], "" if are_open else text[end:].lstrip() if end else text


def marks(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    """Marks that no quotes surround, in their order: "o" or "c" and a number for the kind, and the place."""
    for found in _MARK.finditer(text):
        before, behind = text[: found.start()][-1:], text[found.end() : found.end() + 1]
        if found.lastgroup and not (before and before == behind and before in _QUOTES):
            yield found.lastgroup, found
