"""`slime push`, by the hub's real client and a server in its form that keeps what it gets."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from slime.command import main

from .conftest import Hub


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An HF folder of a run, and what a process that died may leave in it."""
    run = tmp_path / "run"
    folder = run / "export"
    (folder / "additional_chat_templates").mkdir(parents=True)
    (run / "config.yaml").write_text("run: {name: tiny}\n")
    save_file({"weight": np.arange(100_000, dtype=np.float32)}, folder / "model.safetensors")
    (folder / "config.json").write_text('{"model_type": "glm4"}')
    (folder / "README.md").write_text("---\nlibrary_name: transformers\n---\n# mine\n")
    (folder / "additional_chat_templates/tools.jinja").write_text("{{ messages }}")
    (folder / ".half").write_text("no")
    return folder


def sent(hub: Hub, name: str) -> dict[str, bytes]:
    return hub.repositories[f"models/{name}"]["main"]


def test_what_is_on_the_hub_then_is_the_export_byte_for_byte(
    hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(model.parent), "me/tiny", "--private"]) == 0
    files = {path: path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()}
    assert sent(hub, "me/tiny") == {name: path.read_bytes() for path, name in files.items() if name != ".half"}
    assert list(hub.uploaded.values()) == [(model / "model.safetensors").read_bytes()], "weights go as large files"
    assert hub.private == ["me/tiny"]
    assert f"{hub.url}/me/tiny" in capsys.readouterr().out


def test_a_dry_run_asks_nothing_of_the_hub(hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(model), "me/tiny", "--dry-run"]) == 0
    assert hub.asked == []
    said = capsys.readouterr().out
    assert "4 files" in said
    assert "model.safetensors" in said


def test_a_card_that_was_edited_on_the_hub_stays(hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hub.repositories["models/me/tiny"] = {"main": {"README.md": b"# edited there\n"}}
    assert main(["push", str(model), "me/tiny"]) == 0
    assert sent(hub, "me/tiny")["README.md"] == b"# edited there\n"
    assert sent(hub, "me/tiny")["config.json"] == (model / "config.json").read_bytes()
    assert "was edited there and stays" in capsys.readouterr().out


def test_nothing_private_goes_into_a_public_repository(
    hub: Hub, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.repositories["models/me/tiny"] = {"main": {}}
    assert main(["push", str(model), "me/tiny", "--private"]) == 2
    assert sent(hub, "me/tiny") == {}
    assert "this repository is there already, and public" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("none", "neither a run directory nor an HF folder"),
        ("run/step-000001", "there is no checkpoint 'step-000001'. Wait until it has saved one."),
        ("bare", "this run has no export. Wait for its end, or name a checkpoint"),
    ],
)
def test_what_cannot_be_sent(
    path: str, says: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare/config.yaml").write_text("run: {name: bare}\n")
    assert main(["push", str(tmp_path / path), "me/tiny"]) == 2
    assert says in capsys.readouterr().err


def test_without_the_client_a_line_says_how_to_get_it(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["push", str(model), "me/tiny"]) == 2
    assert "huggingface_hub is not installed. Run 'pip install huggingface_hub'." in capsys.readouterr().err
