"""Text of others, made fit for a terminal: what would steer it is shown by its name."""

from __future__ import annotations

import logging
import unicodedata

_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Unicode's controls (C0 and C1), formats (bidirectional marks among them), lone surrogates, and line separators."""
_KEPT = "\n\t"


def printable(text: str) -> str:
    r"""`text` with every character that steers a terminal by its name: `\x1b`, `<U+202E>`. Newlines and tabs stay.

    Files and programs get the text as it is.
    """
    if text.isprintable():
        return text
    return "".join(_name(each) if unicodedata.category(each) in _STEERING else each for each in text)


def _name(character: str) -> str:
    if character in _KEPT:
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"<U+{code:04X}>"


class PrintableFormatter(logging.Formatter):
    """Formatter of log lines, which quote paths, rows and exceptions."""

    def format(self, record: logging.LogRecord) -> str:
        """The line as `logging` makes it, printable."""
        return printable(super().format(record))
