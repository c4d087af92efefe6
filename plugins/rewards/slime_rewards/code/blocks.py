"""The blocks of code in a text, as people and models write them: in fences, in tags, as a session, or nothing else."""

from __future__ import annotations

import ast
import html
import re
import textwrap
import warnings
from collections.abc import Iterator
from functools import cached_property
from itertools import islice

_OPENS = re.compile(
    r"(?:^(?P<lead>[ \t>]*(?:(?:[-*+•]|\d+[.)])[ \t]+)?)(?P<mark>`{3,}|~{3,})|(?P<inside>`{3,}))"
    r"(?P<info>[^\n`]*)(?:\n|\Z)", re.M)  # fmt: skip
_ONE_LINE = re.compile(r"^[ \t>]*```(?:python3?|py)?[ \t]+(?P<code>[^\n`]+?)[ \t]*```[ \t]*$", re.M | re.I)
_TAG = re.compile(
    r"<(?P<tag>answer|code|python|solution|program)(?:\s[^<>]{0,80})?>(?P<code>.*?)(?P<end></(?P=tag)>|\Z)"
    r"|\[PYTHON\](?P<code2>.*?)(?P<end2>\[/PYTHON\]|\Z)", re.S | re.I)  # fmt: skip
_LANGUAGE = re.compile(r"[\w+#-]+")
_PYTHON = {"python", "py", "python3", "py3", "python2", "pypy", "pypy3", "sage", "ipython"}
_SESSION = re.compile(r"^[ \t]*>>> ", re.M)
_LIKE_CODE = re.compile(
    r"^[ \t]*(?:def |class |import \w|from \w+ import|for .+:|while .+:|if .+:|print\b|\w+ *= *\w)", re.M
)
_MOST_ENDS, _MOST_CHARS = 6, 200_000


class Block:
    """A piece of a text that may be code.

    Args:
        text: as it stood there.
        language: in small letters; empty: none is named.

    Attributes:
        code: the same, without what Python cannot read and does not see: marks of byte order, hard blanks, margins.
        is_session: lines behind `>>> `.
    """

    def __init__(self, text: str, language: str = "") -> None:
        self.language, self.is_session = language, False
        self.code, self.tree = text, parsed(text)
        if self.tree is None and len(text) <= _MOST_CHARS:
            self._mend()

    def _mend(self) -> None:
        text = self.code.translate({0xFEFF: None, 0x200B: None, 0x200C: None, 0x2060: None, 0xA0: " ", 0x3000: " "})
        session, before = "", ""
        if shown := _SESSION.search(text):
            lines = [line.lstrip() for line in text.splitlines()]
            session = "\n".join(line[4:] for line in lines if line.startswith((">>>", "...")))
            before = text[: shown.start()].strip()
        whole = (text, textwrap.dedent(text), text.strip(), text.expandtabs(4), text.expandtabs(8), html.unescape(text))
        for each in (*whole, before, session):
            if each and (tree := parsed(each)) is not None:
                self.code, self.tree, self.is_session = each, tree, each is session
                return

    @cached_property
    def is_program(self) -> bool:
        """A program, be it a broken one; not what one prints, nor another language."""
        if self.language and self.language not in _PYTHON and self.language not in ("text", "plaintext", "code", "txt"):
            return False
        if self.tree is None:
            is_named = self.language in _PYTHON
            return is_named and not _SESSION.search(self.code) and bool(_LIKE_CODE.search(self.code))
        return any(map(_does, self.tree.body))


def parsed(code: str) -> ast.Module | None:
    """The tree of a text; None where it is no Python, or too long to ask."""
    if len(code) > _MOST_CHARS:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _does(each: ast.stmt) -> bool:
    """A statement that is more than a value, which outputs are, too."""
    if isinstance(each, ast.Expr):
        return any(isinstance(part, ast.Call | ast.Await | ast.NamedExpr) for part in ast.walk(each))
    return not (isinstance(each, ast.AnnAssign) and each.value is None)


def blocks_of(text: str, *, is_cut: bool) -> list[Block]:
    """The blocks of a text in their order; all of it, where it has none and is a program.

    Args:
        is_cut: it was stopped at its length limit, so what is open at its end is not complete.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n").removeprefix("\ufeff")
    found = list(_fenced(text, is_cut=is_cut))
    places = [place for place, _ in found]
    for tag in _TAG.finditer(text):
        code, end = (tag["code"], tag["end"]) if tag["tag"] else (tag["code2"], tag["end2"])
        in_fence = any(start < tag.end() and tag.start() < stop for start, stop in places)
        if not in_fence and (end or not is_cut):
            found.append((tag.span(), Block(code.strip("\n"))))
    blocks = [block for _, block in sorted(found, key=lambda each: each[0])]
    if not blocks and not (is_cut or "```" in text) and text.strip():
        blocks = [Block(text)]
    return blocks


def _fenced(text: str, *, is_cut: bool) -> Iterator[tuple[tuple[int, int], Block]]:
    at = 0
    while opened := _OPENS.search(text, at):
        one = _ONE_LINE.search(text, at)
        if one and one.start() <= opened.start():
            yield one.span(), Block(one["code"])
            at = one.end()
            continue
        info = _LANGUAGE.search(opened["info"])
        language = info[0].lower() if info else ""
        block, end = _block(text, opened, language, is_cut=is_cut)
        if block is not None:
            yield (opened.start(), end), block
        at = end


def _block(text: str, opened: re.Match[str], language: str, *, is_cut: bool) -> tuple[Block | None, int]:
    """The block in a fence, and its end: the first mark at which it can be read, because programs have marks in their
    texts, and people put one behind the last line."""
    mark, begin, lead = opened["mark"] or opened["inside"], opened.end(), opened["lead"] or ""
    own_line = re.compile(rf"^[ \t>]*{re.escape(mark)}{re.escape(mark[0])}*", re.M)
    ends = list(islice(own_line.finditer(text, begin), _MOST_ENDS))
    if language in _PYTHON or not language:
        ends += islice(re.compile(re.escape(mark)).finditer(text, begin), _MOST_ENDS)
    places = sorted({(each.start(), each.end()) for each in ends})
    first_own = next((each.span() for each in ends if own_line.match(text, each.start())), None)
    for start, end in places:
        block = Block(_without(text[begin:start], lead), language)
        if block.tree is not None and (language in _PYTHON or (start, end) == first_own or block.is_program):
            return block, end
        if language not in _PYTHON and (start, end) == first_own:
            break
    if not places:
        rest = text[begin:]
        return (None if is_cut else Block(_without(rest, lead), language)), len(text)
    start, end = first_own or places[0]
    return Block(_without(text[begin:start], lead), language), end


def _without(code: str, lead: str) -> str:
    return re.sub(r"^[ \t]*>[ \t]?", "", code, flags=re.M) if ">" in lead else code
