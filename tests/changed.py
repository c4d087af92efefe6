"""Print the tests of what a change touches, for `make quick` and `make changed`: paths on one line.

    python tests/changed.py [BASE]     BASE: what the change is compared with, `main` unless named

The tests of `core/slime/<room>/` are `tests/<room>/`, those of `core/slime/<module>.py` are `tests/test_<module>.py`,
and those of a distribution's room are its own `tests/<room>/`. Where a room of a distribution, or a test file, imports
a module that changed, its tests are among them, and the rules of the house always are.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
ALWAYS = ("tests/test_house.py",)
WHOLE = {
    "README.md": "tests/test_readme.py",
    "Makefile": "tests/test_packaging.py",
    "benchmarks": "tests/benchmarks",
    "conf": "tests/compose",
    "conftest.py": "tests/test_conftest.py",
    "docs": "tests/test_site.py",
    "pyproject.toml": "tests/test_packaging.py",
    "requirements": "tests/test_requirements.py",
    "upkeep": "tests/upkeep",
}
OF_ALL = ("plugins/conftest.py", "tests/conftest.py")
"""Fixtures of which every test file uses some: `make test` runs those."""


def changed(base: str) -> list[str]:
    """Files that differ from where this branch left `base`, and new files that git does not ignore."""
    fork = _git("merge-base", base, "HEAD").strip()
    return [
        *_git("diff", "--name-only", fork).splitlines(),
        *_git("ls-files", "--others", "--exclude-standard").splitlines(),
    ]


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=CHECKOUT, check=True, capture_output=True, text=True).stdout


def paths_for(files: Iterable[str]) -> list[str]:
    """The tests that exist for these files, relative to the checkout."""
    found = {*ALWAYS}
    for file in files:
        found |= {*own_tests(file), *importers().get(module_of(file), ())}
    there = {name for name in found if (CHECKOUT / name).exists()}
    return sorted(name for name in there if not any(str(parent) in there for parent in Path(name).parents))


def own_tests(file: str) -> Iterator[str]:
    """The tests of what a file belongs to."""
    match Path(file).parts:
        case _ if file in OF_ALL:
            return
        case ("core", "slime", module) if module.endswith(".py"):
            yield f"tests/test_{module}"
        case ("core", "slime", room, *_):
            yield f"tests/{room}"
        case ("plugins", ("models" | "libraries" | "cpu") as kind, name, *_):
            yield f"plugins/{kind}/{name}/tests"
        case ("plugins", name, _, room, *_) if (CHECKOUT / "plugins" / name / "tests" / room).is_dir():
            yield f"plugins/{name}/tests/{room}"
        case ("plugins", name, *_):
            yield f"plugins/{name}/tests"
        case ("tests", *_, name) if name.startswith("test_") and name.endswith(".py"):
            yield file
        case ("tests", room, _):  # what tests of a room share
            yield f"tests/{room}"
        case (first, *_) if first in WHOLE:
            yield WHOLE[first]


def module_of(file: str) -> str:
    """`slime.train.packing` of `core/slime/train/packing.py`: the name by which others import it; empty if none do."""
    match Path(file).with_suffix("").parts:
        case ("core", *module):
            pass
        case ("plugins", ("models" | "libraries" | "cpu"), _, *module) | ("plugins", _, *module) if (
            module[0] != "tests"
        ):
            pass
        case module:
            pass
    module = module[:-1] if module[-1] == "__init__" else module
    return ".".join(module) if file.endswith(".py") else ""


@cache
def importers() -> dict[str, set[str]]:
    """Of each module the tests of what imports it: of a distribution's room, or a test file itself. What a module of
    core imports is not followed: nearly all of core imports all of its lower floors."""
    found = defaultdict[str, set[str]](set)
    for kind in ("plugins", "tests"):
        for path in (CHECKOUT / kind).rglob("*.py"):
            file = str(path.relative_to(CHECKOUT))
            for tests in own_tests(file) if "/tests/" not in file or not path.name.startswith("test_") else (file,):
                for module in _imported(path):
                    found[module].add(tests)
    return found


def _imported(file: Path) -> Iterator[str]:
    """Names of modules in its imports, and of what it takes from them, which may be modules."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        match node:
            case ast.Import(names=names):
                yield from (each.name for each in names)
            case ast.ImportFrom(module=str(module), names=names):
                yield from (module, *(f"{module}.{each.name}" for each in names))


if __name__ == "__main__":
    sys.stdout.write(" ".join(paths_for(changed(*(sys.argv[1:] or ["main"])))))
