"""What a run asks before anything loads, of whatever preflights are installed."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import pytest

from slime import plugins
from slime.cluster.preflight import require_ready
from slime.compose.compose import compose
from slime.errors import SlimeError
from slime.plugins import Plugin, Plugins
from slime.registry import Contribution
from slime.run_dir import RunDir
from slime.topology.topology import Topology, read_topology


def busy(topology: Topology, run: RunDir, nodes: Collection[str], writes: bool) -> None:
    """Of a third party: finds a host that must not be used today."""
    if "b" in nodes:
        raise SlimeError(f"b is reserved (run {run.path.name}, writes={writes})", where="acme", todo="Wait.")


def installed(monkeypatch: pytest.MonkeyPatch, *contributions: Contribution) -> None:
    everything = plugins.load()
    brought = Plugin("acme", "slime-acme", "1.0", list(contributions))
    without = [
        replace(
            each, contributions=[one for one in each.contributions if (one.kind, one.name) != ("preflight", "hosts")]
        )
        for each in everything.installed
    ]
    assert without != list(everything.installed)
    monkeypatch.setattr(plugins, "load", lambda: Plugins([*without, brought]))


def test_every_installed_preflight_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    topology = read_topology(compose(["+model=glm4-tiny", "+cluster=local"]))
    installed(monkeypatch, Contribution("preflight", "busy", busy, "slime-acme", "1.0"))
    with RunDir.open(tmp_path / "it") as run:
        require_ready(topology, run, ["a"], writes=True)
        with pytest.raises(SlimeError, match=r"^acme: b is reserved \(run it, writes=False\)\. Wait\.$"):
            require_ready(topology, run, ["a", "b"], writes=False)


def test_a_folder_of_weights_is_taken_without_any_preflight(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = ["+model=glm4-tiny", "+cluster=local", f"run.dir={tmp_path}", "weights.transport=disk"]
    topology = read_topology(compose([*words, f"weights.path={tmp_path / 'shared'}"]))
    installed(monkeypatch)
    with RunDir.open(tmp_path / "it") as run, RunDir.open(tmp_path / "other") as other:
        require_ready(topology, run, [], writes=True)
        with pytest.raises(SlimeError, match="set another `weights"):
            other.take(tmp_path / "shared", "weights.path")
