"""Where a response stops thinking and begins to speak, for who reads calls of tools in it."""

from __future__ import annotations

import re

from slime.thinking import marks


def parted(text: str) -> tuple[str, str, str]:
    """A text's thinking without its marks, the mark that ends it, and what stands behind; the first two are empty where
    none is ended. Marks of another kind are words: programs read calls, whose arguments may write of them."""
    begin, outer, opened = 0, "", set[str]()
    end: re.Match[str] | None = None
    for name, found in marks(text):
        side, kind = name[0], name[1:]
        if side == "o" and not opened and not text[: found.start()].strip():
            begin, outer = found.end(), kind
        if side == "o":
            opened.add(kind)
        elif found[0] == end[0] if end else kind == outer or kind not in opened:
            end = found
    return (text[begin : end.start()].strip(), end[0], text[end.end() :]) if end else ("", "", text)
