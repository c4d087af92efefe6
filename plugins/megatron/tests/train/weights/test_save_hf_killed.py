"""Real kills while an export replaces an earlier one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slime_megatron.train.weights.save_hf import save_hf
from tests.killed import folders_of_killed

EXPORT = """
import shutil, sys
from pathlib import Path
import torch
from killed import kill_at_every_line
from slime import files
from slime_megatron.train.weights import save_hf

folder = Path(sys.argv[1])
weights = {value: [("t", torch.full((4,), value))] for value in (1.0, 2.0)}

def export(value):
    return lambda run: save_hf.save_hf(weights[value], folder / "source", run / "out", replace=True)

kill_at_every_line(folder, [save_hf, files, shutil], export(1.0), export(2.0))
"""


@pytest.mark.slow
def test_a_kill_at_any_statement_leaves_a_whole_export_or_none(memory_folder: Path) -> None:
    """One child for each line, killed there. The folder is the one before, the new one, or for an instant not there;
    the next export finishes, and removes what was left."""
    source = memory_folder / "source"
    source.mkdir()
    for name in ("config.json", "tokenizer.json"):
        (source / name).write_text("{}")
    states: dict[str, dict[str, bytes] | None] = {"before": None, "none": None, "new": None}
    for state, value in (("before", 1.0), ("new", 2.0)):
        save_hf(_weights(value), source, memory_folder / state)
        states[state] = _content(memory_folder / state)
    found = []
    for run in folders_of_killed(EXPORT, memory_folder):
        out = run / "out"
        content = _content(out) if out.exists() else None
        found.append(next((state for state, whole in states.items() if whole == content), "half"))
        save_hf(_weights(2.0), source, out, replace=True)
        assert _content(out) == states["new"]
        assert [path.name for path in run.iterdir()] == ["out"]
    assert len(found) > 100
    assert found == sorted(found, key=list(states).index), "before, then none, then the new one"
    assert {"before", "new"} <= set(found)
    assert found.count("none") <= 2, "the lines between two renames"


def _weights(value: float) -> list[tuple[str, torch.Tensor]]:
    return [("t", torch.full((4,), value))]


def _content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
