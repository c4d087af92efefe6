"""What the actors of a run are told: a Ray that was there before works in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.cluster.group import _for_actors
from slime.compose.compose import examine
from slime.topology.topology import read_topology


def test_paths_that_actors_read_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cfg = examine(["+model=glm4-tiny", "+cluster=local"]).cfg
    cfg.model.path, cfg.model.tokenizer, cfg.model.weights, cfg.algo.teacher.path = "model", "words", "step", "teacher"
    told = _for_actors(read_topology(cfg)).config
    paths = (told.model.path, told.model.tokenizer, told.model.weights, told.algo.teacher.path)
    assert paths == tuple(str(tmp_path / name) for name in ("model", "words", "step", "teacher"))
    assert cfg.algo.teacher.path == "teacher"
    cfg.algo.teacher.path = None
    assert _for_actors(read_topology(cfg)).config.algo.teacher.path is None
