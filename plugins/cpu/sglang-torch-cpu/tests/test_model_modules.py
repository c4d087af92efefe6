"""An engine imports the model that it serves, and what may be asked for in its place."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from sglang_torch_cpu.model_modules import LEFT_OUT, OTHERS, leave_out, models_folder, unneeded

CONFIGS = sorted(Path(__file__).parents[4].glob("plugins/models/*/*/assets/*/config.json"))


def needed(fields: Mapping[str, Any]) -> set[str]:
    return {file.stem for file in models_folder().glob("*.py")} - set(unneeded(fields))


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.parent.name)
def test_the_module_with_the_class_stays_and_most_others_go(config: Path) -> None:
    (name,) = json.loads(config.read_text())["architectures"]
    stays = needed({"model_path": str(config.parent)})
    assert any(f"class {name}(" in (models_folder() / f"{module}.py").read_text() for module in stays)
    assert len(stays) <= 20  # of more than 200; 20 modules build on llama's


def folder_with(tmp_path: Path, **config: Any) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


GLM4 = {"architectures": ["Glm4ForCausalLM"]}


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (GLM4, {"speculative_algorithm": "EAGLE"}),
        (GLM4, {"model_impl": "transformers"}),
        (GLM4, {"json_model_override_args": '{"architectures": ["UnknownForCausalLM"]}'}),
        ({"architectures": ["UnknownForCausalLM"]}, {}),
        ({**GLM4, "text_config": {"model_type": "glm4"}}, {}),
        ({}, {}),
    ],
    ids=["drafts", "transformers", "overridden", "unknown", "parts", "unnamed"],
)
def test_where_sglang_chooses_another_class_nothing_goes(
    config: Mapping[str, Any], fields: Mapping[str, Any], tmp_path: Path
) -> None:
    assert unneeded({"model_path": folder_with(tmp_path, **GLM4)})
    assert unneeded({"model_path": folder_with(tmp_path, **config), **fields}) == []


@pytest.mark.parametrize("name", [LEFT_OUT, OTHERS])
def test_what_the_user_has_set_stays(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in (LEFT_OUT, OTHERS):
        monkeypatch.setenv(variable, "")
    fields = {"model_path": folder_with(tmp_path, **GLM4)}
    leave_out(fields)
    assert "qwen3" in os.environ[LEFT_OUT].split(",")
    monkeypatch.setenv(LEFT_OUT, "")
    monkeypatch.setenv(name, "mine")
    leave_out(fields)
    assert os.environ[name] == "mine"
    assert os.environ[LEFT_OUT] in ("", "mine")
