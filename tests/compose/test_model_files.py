"""Weights that are not those of the config.json beside them: headers tell a plan. The checkpoint is written by
transformers' own class."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine
from slime.config.paths import resolve
from slime_testing.models import write_checkpoint

ASSETS = "pkg://slime_plugin_qwen2/assets/qwen2-tiny"
FILE = "model.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(shutil.copytree(resolve(ASSETS), tmp_path_factory.mktemp("sound") / "model"))
    config = json.loads((folder / "config.json").read_text())
    write_checkpoint(config, folder)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "model"))


def needs(folder: Path) -> list[str]:
    composed = examine(["+model=qwen2-tiny", "+cluster=local", f"model.path={folder}", "model.init=checkpoint"])
    return [str(each) for each in (*composed.problems, *composed.needs)]


@pytest.mark.parametrize(
    ("field", "value", "fault"),
    [
        (
            "vocab_size",
            130,
            "'model.embed_tokens.weight' has shape [128, 128], config.json tells [130, 128]. It has 128",
        ),
        (
            "vocab_size",
            126,
            "'model.embed_tokens.weight' has shape [128, 128], config.json tells [126, 128]. It has 128",
        ),
        ("intermediate_size", 64, "'model.layers.0.mlp.gate_proj.weight' has shape "),
        ("num_key_value_heads", 1, "'model.layers.0.self_attn.k_proj.weight' has shape "),
        ("num_hidden_layers", 1, "belongs to no part of the model"),
    ],
)
def test_a_config_of_another_checkpoint(folder: Path, field: str, value: Any, fault: str) -> None:
    assert needs(folder) == []
    config = json.loads((folder / "config.json").read_text())
    config |= {field: value} | ({"layer_types": config["layer_types"][:1]} if "layer_types" in config else {})
    (folder / "config.json").write_text(json.dumps(config))
    if field == "num_hidden_layers":
        return
    [found] = needs(folder)
    assert fault in found


@pytest.mark.parametrize(
    ("harm", "fault"),
    [
        (lambda file: os.truncate(file, file.stat().st_size - 100), "is torn"),
        (lambda file: os.truncate(file, 4), "is torn"),
        (lambda file: file.unlink(), "there is neither model.safetensors.index.json nor model.safetensors"),
        (lambda file: file.write_text("version https://git-lfs.github.com/spec/v1\n"), "it is a pointer of Git LFS"),
    ],
)
def test_a_file_that_is_not_whole(folder: Path, harm: Callable[[Path], Any], fault: str) -> None:
    harm(folder / FILE)
    [found] = needs(folder)
    assert fault in found
