"""The committed tiny models are what the plugins' tools write."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within

MODELS = Path(__file__).resolve().parents[2] / "models"
TOOLS = {tool.parents[1].name: tool for tool in sorted(MODELS.glob("*/tools/make_tiny_assets.py"))}


@pytest.mark.parametrize("plugin", TOOLS)
def test_assets_are_what_the_tool_writes(plugin: str, tmp_path: Path) -> None:
    run_within(60, [sys.executable, TOOLS[plugin], tmp_path])
    (assets,) = TOOLS[plugin].parents[1].glob("slime_plugin_*/assets")
    written = [file.relative_to(tmp_path) for file in sorted(tmp_path.glob("*/*"))]
    assert written
    for file in written:
        assert (tmp_path / file).read_text() == (assets / file).read_text(), file
