"""The seam to the inference server."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.config.schema import Device
from slime.engine_client.client import EngineClient
from slime.engines import software
from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint, Secret
from slime_testing.engines import cpu_config, topology_at


def test_a_host_without_what_starts_engines_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "ENGINES", "slime_engines_that_nobody_brings")
    with pytest.raises(SlimeError) as raised:
        software.software(Device.cpu)
    said = str(raised.value)
    assert said.startswith("engines need slime-sglang, which is not installed here. Run: pip install 'slime-rl[")
    assert "\n" not in said


def test_what_is_installed_has_servers_and_clients(tmp_path: Path) -> None:
    found = software.software(Device.cpu)
    server = found.server(topology_at(cpu_config(), tmp_path), host=LOOPBACK, log=tmp_path / "engine.log")
    assert server.end() is None
    server.stop()
    assert isinstance(found.client(Endpoint("http://127.0.0.1:1", Secret("any")), 1.0), EngineClient)


def test_two_that_bring_it_are_named_and_neither_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "other_engines-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: other-engines\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{software.ENGINES}]\nsglang = builtins:dict\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        SlimeError, match="engines named 'sglang' are brought by other-engines and by slime-sglang"
    ) as two:
        software.software(Device.cpu)
    assert two.value.todo == "Keep one: 'pip uninstall other-engines' or 'pip uninstall slime-sglang'."
