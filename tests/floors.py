"""How much of each room of core the tests run: `pytest -p tests.floors && python tests/floors.py`.

Counted are the statements of functions; whoever imports a module runs the others. Each gets one before it that notes
its line, as pytest rewrites asserts. Coverage is not used: before Python 3.12 it is asked at every line of every
library, and tests of chat templates take two thirds longer. What runs in processes that tests start, as actors, engines
and ranks do, is not counted.
"""

from __future__ import annotations

import argparse
import ast
import json
import math
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

CORE = Path(__file__).parents[1] / "core/slime"
FOLDER = CORE.parents[1] / ".ran"
"""Where each process of tests writes which lines it has run."""
NAME = "@ran"
"""Of these lines, in a module of core. No name of a program's own begins so."""
FLOORS: dict[str, int] = {
    ".": 67,
    "algo": 96,
    "cluster": 14,
    "compose": 96,
    "config": 96,
    "data": 94,
    "engine_client": 94,
    "engines": 67,
    "models": 98,
    "observe": 95,
    "plan": 94,
    "reward": 87,
    "sampling": 96,
    "sizes": 98,
    "topology": 95,
    "train": 98,
    "verbs": 92,
    "weights": 53,
}
"""Percent of a room of core, `.` for the modules at its top. Lower one only by a commit that says why."""

_ran: dict[str, bytearray] = {}
"""Of each file of core that was imported: for each of its lines, 1 if it has run."""


def blocks(tree: ast.Module) -> list[list[ast.stmt]]:
    """Every sequence of statements inside of functions."""
    found = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for node in ast.walk(function):
                for name in ("body", "orelse", "finalbody"):
                    if isinstance(block := getattr(node, name, None), list):
                        found[id(block)] = block  # once, although it is in each of nested functions
    return list(found.values())


def counts(statement: ast.stmt) -> bool:
    """Whether it is more than a docstring or `...`."""
    return not (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))


def statements(tree: ast.Module) -> set[int]:
    """Lines where those begin that count."""
    return {statement.lineno for block in blocks(tree) for statement in block if counts(statement)}


def noting(tree: ast.Module) -> ast.Module:
    """The same program, where a line is noted before each of these statements runs."""
    for block in blocks(tree):
        block[:] = [each for statement in block for each in (*_notes(statement), statement)]
    return tree


def _notes(statement: ast.stmt) -> Iterator[ast.stmt]:
    if counts(statement):
        target = ast.Subscript(ast.Name(NAME, ast.Load()), ast.Constant(statement.lineno), ast.Store())
        note = ast.Assign([target], ast.Constant(1))
        for node in ast.walk(note):
            ast.copy_location(node, statement)
        yield note


class NotingLoader(SourceFileLoader):
    """Of a module of core."""

    def get_code(self, fullname: str) -> CodeType:
        tree = ast.parse(self.get_data(self.path))
        return compile(noting(tree), self.path, "exec", dont_inherit=True)  # and nothing is kept in `__pycache__`

    def exec_module(self, module: ModuleType) -> None:
        num_lines = self.get_data(self.path).count(b"\n") + 1
        vars(module)[NAME] = _ran.setdefault(self.path, bytearray(num_lines + 1))
        super().exec_module(module)


class Finder(MetaPathFinder):
    """Has core loaded so."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name.partition(".")[0] == CORE.name else None
        if spec and spec.origin and Path(spec.origin).is_relative_to(CORE):
            spec.loader = NotingLoader(name, spec.origin)
        return spec


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--ran", type=Path, default=FOLDER, help="folder for the lines of core that have run")


def pytest_load_initial_conftests() -> None:
    assert CORE.name not in sys.modules, "what is imported already notes nothing"
    sys.meta_path.insert(0, Finder())


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        shutil.rmtree(config.option.ran, ignore_errors=True)
        config.option.ran.mkdir()


def pytest_sessionfinish(session: pytest.Session) -> None:
    told = {
        Path(file).relative_to(CORE).as_posix(): [line for line, has_run in enumerate(lines) if has_run]
        for file, lines in _ran.items()
    }
    (session.config.option.ran / f"{os.getpid()}.json").write_text(json.dumps(told))


def ran(folder: Path) -> dict[str, set[int]]:
    """Of each file of core, the lines that any process of tests has run."""
    found: dict[str, set[int]] = {}
    for file in folder.glob("*.json"):
        for name, lines in json.loads(file.read_text()).items():
            found.setdefault(name, set()).update(lines)
    return found


def shares(ran: Mapping[str, set[int]]) -> dict[str, float]:
    """Percent of the statements of each room."""
    num_all, num_ran = Counter[str](), Counter[str]()
    for file in CORE.rglob("*.py"):
        name = file.relative_to(CORE).as_posix()
        room = name.partition("/")[0] if "/" in name else "."
        lines = statements(ast.parse(file.read_text()))
        num_all[room] += len(lines)
        num_ran[room] += len(lines & ran.get(name, set()))
    return {room: 100 * num_ran[room] / total for room, total in num_all.items() if total}


def under(found: Mapping[str, float], floors: Mapping[str, int]) -> list[str]:
    """A line for each room that has less than its floor, or none."""
    return [
        f"{room}: tests run {share:.1f} % of the statements of its functions, less than its floor of "
        f"{floors.get(room, 100)} %. Test what is new, or lower the floor in tests/floors.py and say why."
        for room, share in sorted(found.items())
        if share < floors.get(room, 100)
    ]


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Compare what tests have run of each room of core with its floor.")
    parser.add_argument("--print", action="store_true", help="print floors for this file, two percent under that")
    args = parser.parse_args(argv)
    found = shares(ran(FOLDER))
    if args.print:
        for room, share in sorted(found.items()):
            print(f'    "{room}": {math.floor(share) - 2},')
        return 0
    for room, share in sorted(found.items()):
        print(f"{room:14} {share:5.1f} %   floor {FLOORS.get(room, 100)} %")
    problems = under(found, FLOORS)
    print("\n".join(problems), file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
