"""What the metadata of slime and its plugins promises to whoever installs them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
CORE = "slime-rl"
PLUGINS = sorted(ROOT.glob("plugins/*/*/pyproject.toml"))


def project(pyproject: Path) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return found


def test_the_name_is_not_the_one_that_somebody_else_has_on_the_package_index() -> None:
    assert project(ROOT / "pyproject.toml")["name"] == CORE


@pytest.mark.parametrize("pyproject", PLUGINS, ids=lambda path: path.parent.name)
def test_a_plugin_depends_on_slime_by_that_name(pyproject: Path) -> None:
    """In the repository and in every example: who asks the index for `slime` gets a stranger's code."""
    assert project(pyproject)["name"] == f"slime-plugin-{pyproject.parent.name}"
    assert f"{CORE}>=0.1,<0.2" in project(pyproject)["dependencies"]


def test_no_example_asks_for_the_name_of_somebody_else() -> None:
    asks = re.compile(r"""["']slime *[<>=~!\[]|pip install (-\S+ )*slime(?![\w-])""")
    files = [
        path for pattern in ("docs/*.md", "*.md", "plugins/**/*.md", "tests/**/*.toml") for path in ROOT.glob(pattern)
    ]
    assert len(files) > 20
    assert [str(path) for path in files if asks.search(path.read_text(encoding="utf-8"))] == []
