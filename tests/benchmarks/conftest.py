"""What tests of benchmarks start from: the programs, which import each other by name as scripts of one folder do."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")


@pytest.fixture
def program(request: pytest.FixtureRequest) -> ModuleType:
    """The benchmark that a file tests: `against_verl` of test_against_verl.py."""
    return importlib.import_module(request.path.stem.removeprefix("test_"))
