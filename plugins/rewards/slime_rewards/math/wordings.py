"""Answers without a box: in other languages, as a word alone, and before a note at the end."""

from __future__ import annotations

import re

_NAMES = (
    "答案|答え|解答|答|정답|답|respuesta|réponse|reponse|antwort|lösung|ergebnis|resposta|risposta|ответ|відповідь"
    "|đáp án|đáp số|cevap|odpowiedź|odpověď|antwoord|svar|उत्तर|الإجابة|الجواب|jawaban|vastaus|válasz|απάντηση|răspuns"
)
_WHICH = r"(?:\s+(?:finale?|correcte?|correct[ao]|endgültige|cuối cùng))?"
_IS = r"(?:\s*(?:是|为|為|は|은|는)|\s+(?:es|est|ist|lautet|é|è|is|er|är|to|jest|este|là|है|هي|هو)(?!\w))"
_SAID = re.compile(rf"(?:{_NAMES}){_WHICH}[*_]*(?:\s*[:：=][*_]*|{_IS}\s*[:：]?)\s*(?=([^\n]+))", re.IGNORECASE)
_NOT = re.compile(r"(?:not|nicht|kein|no|pas|não|non|не|不|niet|inte|ikke)(?![^\W\d_])", re.IGNORECASE)
_END = re.compile(r"。|．|\s*(?:です|である|だ|입니다|이다|이에요|예요)|\.(?:\s|$)|[;；？?]")
_NOTE = re.compile(
    r"\n[\s>#*_(\[]*(?:notes?|remarks?|n\.?b\.?|p\.?s\.?|disclaimer|caveat|hint|tip)[*_]*\s*[.:：][*_]*(?=\s)[^\n]*\s*$",
    re.IGNORECASE,
)
# A note with any of these may take the answer back, or be where it stands.
_CONCLUDES = re.compile(
    r"[=$\\≈]|\b(?:so|thus|therefore|hence|wrong|actually|instead|must|should|answer|correct(?:ed)?|only|not|becomes?|mistake"
    r"|however|but|error|rather|if|we get|gives?|is)\b",
    re.IGNORECASE,
)
_WORD = re.compile(
    r"[\s>#*_`\"'“(]*(yes|no|true|false)(?![\w'’-])[*_`\"”)]*(?!\s*(?:,\s*)?(?:or|and|/|\?))(?!\s*\?)", re.IGNORECASE
)
_LAST_WORD = re.compile(
    r"\b(?:is|are|was|be|therefore|thus|hence|so|:)[\s*_`\"“,]+(true|false|yes|no)[*_`\"”]*[.!]?[*_]*$", re.IGNORECASE
)
_DENIED = re.compile(r"\b(?:not|never|neither|whether|if|or)\b|n['’]t\b|\?", re.IGNORECASE)
_WORDS = {"yes", "no", "true", "false"}
_TAIL, _MAX_NOTES = 2048, 3


def said_otherwise(text: str) -> tuple[int, int, str] | None:
    """Begin, end and text of what the end of a response calls the answer in another language than English."""
    begin = max(0, len(text) - _TAIL)
    for found in reversed(list(_SAID.finditer(text, begin))):
        value = found[1]
        if not _NOT.match(value):
            return found.start(), found.end(1), _END.split(value, maxsplit=1)[0].strip(" *_\t\r")
    return None


def without_notes(text: str) -> str:
    """`text` without notes at its end that draw no conclusion: numbers in them answer nothing."""
    for _ in range(_MAX_NOTES):
        found = _NOTE.search(text, text.rstrip().rfind("\n") if "\n" in text.rstrip() else len(text))
        if not found or _CONCLUDES.search(found[0]) or not text[: found.start()].strip():
            break
        text = text[: found.start()]
    return text


def is_word(label: str) -> bool:
    """A label that is yes, no, true or false."""
    return label.strip().lower() in _WORDS


def word_said(text: str) -> str | None:
    """Yes, no, true or false as the first word of the last line, as the last word of all, or as the first."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    if not lines:
        return None
    if found := _WORD.match(lines[-1]):
        return found[1]
    last = re.split(r"(?<=[.!?])\s+", lines[-1])[-1]
    if (found := _LAST_WORD.search(last)) and not _DENIED.search(last):
        return found[1]
    found = _WORD.match(lines[0])
    return found[1] if found else None
