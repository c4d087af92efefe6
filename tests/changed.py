"""Print the tests of what a change touches, for `make quick`: paths on one line.

    python tests/changed.py [BASE]     BASE: what the change is compared with, `main` unless named

The tests of `core/slime/<room>/` are `tests/<room>/`, those of `core/slime/<module>.py` are `tests/test_<module>.py`,
and those of a distribution's room are its own
`tests/<room>/`. The rules of the house are always among them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
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
        match Path(file).parts:
            case ("core", "slime", module) if module.endswith(".py"):
                found.add(f"tests/test_{module}")
            case ("core", "slime", room, *_):
                found.add(f"tests/{room}")
            case ("plugins", ("models" | "libraries" | "cpu") as kind, name, *_):
                found.add(f"plugins/{kind}/{name}/tests")
            case ("plugins", name, _, room, *_) if (CHECKOUT / "plugins" / name / "tests" / room).is_dir():
                found.add(f"plugins/{name}/tests/{room}")
            case ("plugins", name, *_):
                found.add(f"plugins/{name}/tests")
            case ("tests", *_, name) if name.startswith("test_") and name.endswith(".py"):
                found.add(file)
            case ("tests", room, _):  # what tests of a room share
                found.add(f"tests/{room}")
            case (first, *_) if first in WHOLE:
                found.add(WHOLE[first])
    there = {name for name in found if (CHECKOUT / name).exists()}
    return sorted(name for name in there if not any(str(parent) in there for parent in Path(name).parents))


if __name__ == "__main__":
    sys.stdout.write(" ".join(paths_for(changed(*(sys.argv[1:] or ["main"])))))
