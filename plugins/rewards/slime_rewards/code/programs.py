"""The program of a response: its blocks, in fences, in tags or as a session; what these take of each other, and the
imports that they take as given."""

from __future__ import annotations

import ast
import builtins
import html
import importlib
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from functools import cache, cached_property
from itertools import islice
from typing import NamedTuple

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


_READERS = {"input", "stdin", "fileinput", "open", "read", "readline", "readlines", "raw_input"}
_PASSIVE = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign,
            ast.AugAssign, ast.Pass)  # fmt: skip
_MODULES = ("collections", "typing", "itertools", "functools", "heapq", "bisect", "math", "string", "copy",
            "random", "datetime", "re", "statistics")  # fmt: skip
"""Whose names need no import, as where problems with functions come from."""
_WHOLE = ("operator", "sys", "os", "io", "json", "time", "queue", "decimal", "fractions", "array", "threading")
_BUILTIN = frozenset(dir(builtins)) | {"__name__", "__file__", "__doc__", "exit", "quit"}
_FUTURE = re.compile(r"^from __future__ import .*$", re.M)


class Program(NamedTuple):
    """Python code, and imports of what it takes as given."""

    code: str
    before: str = ""


def program_of(said: str, names: Sequence[str] = (), *, is_cut: bool = False) -> Program | None:
    """The last whole program of a text; None where it has none.

    Args:
        names: functions that it is asked for; none: it reads its input.
        is_cut: the text was stopped at its length limit.
    """
    blocks = [block for block in blocks_of(said, is_cut=is_cut) if block.is_program]
    whole = [block for block in blocks if not block.is_session] or blocks
    if not whole:
        return None
    pieces = [_Piece(block) for block in whole]
    chosen = _with_names(pieces, names) if names else _that_reads(pieces)
    code = _joined(pieces, chosen if chosen is not None else len(pieces) - 1)
    code = code.encode(errors="replace").decode()
    return Program(code, "\n".join(_imports(code, names)))


class _Piece:
    """A block: the names that it binds and takes, those that it cannot run without, and what it does."""

    def __init__(self, block: Block) -> None:
        self.code, self.tree = block.code, block.tree
        body = block.tree.body if block.tree else []
        self.defines, self.takes = _defined(body), _taken(block.tree) if block.tree else set()
        own = [each for each in body if not isinstance(each, ast.FunctionDef | ast.ClassDef)]
        self.runs_with = _taken(ast.Module(own, [])) & self.takes
        self.is_broken = block.tree is None
        self.acts = self.is_broken or any(not isinstance(each, _PASSIVE) and not _is_text(each) for each in body)
        self.reads = block.tree is not None and _reads(block.tree)
        self.methods = {
            each.name
            for kind in body
            if isinstance(kind, ast.ClassDef)
            for each in kind.body
            if isinstance(each, ast.FunctionDef) and not _is_stub(each)
        }
        self.stubs = {each.name for each in body if isinstance(each, ast.FunctionDef) and _is_stub(each)}

    def has(self, name: str) -> bool:
        return (name in self.defines and name not in self.stubs) or name in self.methods

    def library(self) -> str:
        """Code that others take of it: it is not run for what it does."""
        if not self.acts:
            return self.code
        kept = [each for each in self.tree.body if isinstance(each, _PASSIVE)] if self.tree else []
        return "\n".join(ast.unparse(each) for each in kept if not (isinstance(each, ast.Assign) and _reads(each)))


def _with_names(pieces: Sequence[_Piece], names: Sequence[str]) -> int | None:
    for number in reversed(range(len(pieces))):
        if any(pieces[number].has(name) for name in names):
            return number
        if pieces[number].is_broken and any(re.search(rf"\bdef {name}\b", pieces[number].code) for name in names):
            return number
    return None


def _that_reads(pieces: Sequence[_Piece]) -> int | None:
    """The last piece that does something, and is not there to show how an earlier one is used."""
    for number in reversed(range(len(pieces))):
        piece, earlier = pieces[number], pieces[:number]
        if not piece.acts:
            continue
        known = set().union(*(each.defines for each in earlier))
        shows = piece.takes & known or piece.runs_with - known - _homes().keys() - {*_MODULES, *_WHOLE, "np"}
        if shows and not piece.reads and any(each.acts and each.reads for each in earlier):
            continue
        return number
    return None


def _joined(pieces: Sequence[_Piece], chosen: int) -> str:
    """A piece behind those whose names it takes, and theirs."""
    used, missing = [chosen], set(pieces[chosen].takes)
    others = [*range(chosen - 1, -1, -1), *range(chosen + 1, len(pieces))]
    while found := [n for n in others if n not in used and pieces[n].defines & missing and not pieces[n].is_broken]:
        missing -= pieces[found[0]].defines
        missing |= pieces[found[0]].takes
        used.append(found[0])
    before = [n for n in sorted(used) if n != chosen]
    if not before:
        return pieces[chosen].code
    code = "\n".join([*(pieces[n].library() for n in before), pieces[chosen].code])
    future = dict.fromkeys(_FUTURE.findall(code))
    return "\n".join([*future, _FUTURE.sub("", code)])


def _is_text(each: ast.stmt) -> bool:
    return isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)


def _is_stub(function: ast.FunctionDef) -> bool:
    return all(isinstance(each, ast.Pass) or _is_text(each) for each in function.body)


def _reads(tree: ast.AST) -> bool:
    return any(
        getattr(node, "id", getattr(node, "attr", "")) in _READERS
        for node in ast.walk(tree)
        if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
    )


def _defined(body: Sequence[ast.stmt]) -> set[str]:
    """Names that the top of a module binds."""
    found = set[str]()
    for each in body:
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(each.name)
            continue
        for node in ast.walk(each):
            match node:
                case ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                    found.add(name)
                case ast.alias(name=name, asname=other):
                    found.add((other or name).partition(".")[0])
    return found


def _taken(tree: ast.Module) -> set[str]:
    """Names that a module reads and nothing in it binds."""
    loaded, bound = set[str](), set[str]()
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                loaded.add(name)
            case ast.Name(id=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.alias(name=name, asname=other):
                bound.add((other or name).partition(".")[0])
            case _ if isinstance(own := getattr(node, "name", None), str):  # functions, classes, exceptions, patterns
                bound.add(own)
    return loaded - bound - _BUILTIN


def _imports(code: str, asked: Sequence[str]) -> Iterator[str]:
    """Imports of what a program takes as given: `List`, `math`, `deque`; not of what is asked of it."""
    if (tree := parsed(code)) is None:
        return
    for name in sorted(_taken(tree).difference(asked)):
        if name in _MODULES or name in _WHOLE:
            yield f"import {name}"
        elif name == "np":
            yield "import numpy as np"
        elif (module := _homes().get(name)) is not None:
            yield f"from {module} import {name}"


@cache
def _homes() -> dict[str, str]:
    found = dict[str, str]()
    for module in reversed(_MODULES):
        here = importlib.import_module(module)
        names = getattr(here, "__all__", None) or [name for name in dir(here) if not name.startswith("_")]
        found |= dict.fromkeys(names, module)
    return found
