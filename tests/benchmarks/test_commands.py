"""The runs that benchmarks say they measure are ones that slime accepts."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime.config.compose import compose

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def commands() -> Iterator[tuple[str, str]]:
    """Of each benchmark that takes a run's settings: its name, and what its docstring gives it."""
    for name in ("offload", "publish"):
        for line in (BENCHMARKS / f"{name}.py").read_text().splitlines():
            command, _, _ = line.strip().partition("#")
            if command.startswith(f"python benchmarks/{name}.py +"):
                yield name, command.partition("+")[2].strip()


@pytest.mark.parametrize(("name", "settings"), commands())
def test_run_is_accepted(monkeypatch: pytest.MonkeyPatch, name: str, settings: str) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    rest = runpy.run_path(str(BENCHMARKS / f"{name}.py"))["REST"]
    assert compose([*f"+{settings}".split(), *rest]).model.name == "glm4-9b"
