"""Tests of a distribution stand beside it: the subject of a file in `tests/` is core, whole runs, this repository."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
OWN = ("slime", "slime_testing")
"""Core, and what tests of whatever is under test use."""
WORDS = ("compose", "config", "errors", "imports", "net", "plugins", "types")
"""Modules of core with which a test says what it asks: they alone make core no subject."""
DRIVES_CORE = (("tests", "running"), ("tests", "site"), ("slime_testing", "publishing"))
"""Whole runs, a plugin that somebody installs, and core's own publisher."""
OF_CORE = {
    "reward/test_environment.py": "what rewards get of the run's environment, through slime's service of rewards",
    "reward/test_guard.py": "what a reward may do, through slime's service of rewards; its library knows no rewards",
    "reward/test_room.py": "what a reward can reach, through slime's service of rewards",
    "weights/publisher/test_publish.py": "core's publisher, one of whose transports is called as it",
    "test_small_models.py": "shipped recipes, which belong to no distribution",
}
"""Files whose subject is core although they look otherwise, and why."""


def distributions() -> set[str]:
    """The packages of this repository that are no part of core."""
    projects = TESTS.parent.glob("plugins/**/pyproject.toml")
    wheels = (tomllib.loads(file.read_text())["tool"]["hatch"]["build"]["targets"]["wheel"] for file in projects)
    return {package for wheel in wheels for package in wheel["packages"]} - {*OWN}


def imported(source: str) -> set[tuple[str, ...]]:
    """The modules that a file names in its imports, wherever these stand, each by its parts."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found |= {tuple(each.name.split(".")) for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {(*module.split("."), each.name) for each in names}
    return found


def elsewhere(name: str, source: str, distributions: set[str]) -> str:
    """Why this file of `tests/` is to stand beside a distribution; empty where it is not."""
    modules = imported(source)
    theirs = [parts for parts in modules if parts[0] in distributions]
    subject = Path(name).stem.removeprefix("test_")
    if called := [parts for parts in theirs if subject in parts[1:]]:
        return f"called as {'.'.join(min(called))}"
    of_core = any(parts[0] == "slime" and parts[1:2] and parts[1] not in WORDS for parts in modules)
    driven = any(parts[:2] in DRIVES_CORE for parts in modules)
    return "" if not theirs or of_core or driven else f"of core it imports no more than {', '.join(WORDS)}"


def files() -> Iterator[tuple[str, str]]:
    """Tests of core by their path below `tests/`; third parties and programs of `benchmarks/` are subjects, too."""
    for file in sorted(TESTS.rglob("test_*.py")):
        name = str(file.relative_to(TESTS))
        if not name.startswith(("benchmarks/", "third_party/")):
            yield name, file.read_text(encoding="utf-8")


def test_tests_of_a_distribution_stand_beside_it() -> None:
    packages = distributions()
    assert len(packages) > 20
    found = {name: why for name, source in files() if (why := elsewhere(name, source, packages))}
    assert {name: why for name, why in found.items() if name not in OF_CORE} == {}, "move it: git mv"
    assert found.keys() == OF_CORE.keys(), "an exception that is none"


@pytest.mark.parametrize(
    ("name", "source", "why"),
    [
        ("engines/test_process.py", "from slime_sglang.engine.driver.process import EngineProcess", "called as"),
        (
            "sampling/test_ahead.py",
            "from slime.types import G\nfrom slime_filters.ahead import gate",
            "called as",
        ),
        ("models/test_it.py", "from slime.config.schema import C\nimport slime_tools.fit.search", "of core it imports"),
        ("models/test_it.py", "from slime.models.rules import R\nimport slime_tools.fit.search", ""),
        ("test_run.py", "from tests.running import Run\nfrom slime_cluster.ray import reaper", ""),
        ("config/test_keys.py", "from slime.config.keys import own_keys", ""),
    ],
)
def test_a_file_that_stands_elsewhere_is_found(name: str, source: str, why: str) -> None:
    assert elsewhere(name, source, distributions()).startswith(why)
    assert bool(elsewhere(name, source, distributions())) == bool(why)
