"""What a run refuses before anything expensive starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from slime import command, plugins
from slime.config.hf import read_hf_config
from slime.config.paths import resolve

RUN = ["+model=glm4-tiny", "+cluster=local"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", None, "{folder}: there is no tokenizer: neither tokenizer.json nor another vocabulary. "),
        ("tokenizer.json", '{"a": [1, ', "{folder}/tokenizer.json: is torn: it does not end as JSON does. Fetch the "),
        ("tokenizer_config.json", "[]", "{folder}/tokenizer_config.json: cannot be read (it holds no JSON object). "),
        ("generation_config.json", "{", "{folder}/generation_config.json: cannot be read (Expecting property name "),
        ("chat_template.jinja", None, "{folder}: the tokenizer has no chat template. Put the model's chat_template"),
        ("model.safetensors", "broken off", "{folder}: 'model.safetensors' is torn or no safetensors file (Error wh"),
    ],
)
def test_a_download_that_broke_off_is_refused_before_ray_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, said: str
) -> None:
    folder = shutil.copytree(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), tmp_path / "model")
    (folder / name).unlink() if content is None else (folder / name).write_text(content)
    words = [*RUN, f"model.path={folder}", f"run.dir={tmp_path}"]
    assert command.main([*words, "model.init=checkpoint"] if "safetensors" in name else words) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"slime: {said.format(folder=folder)}")
    assert "Ray" not in shown.out + shown.err
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"model.norm.weight": None},
            "{folder}: the tensor 'model.norm.weight' is missing. Check that the c",
        ),
        (
            {"model.scale": np.zeros(1)},
            "{folder}: the tensor 'model.scale' belongs to no part of the model. Check",
        ),
        (
            {"model.norm.weight": np.zeros(64, np.int8)},
            "{folder}/model.safetensors: 'model.norm.weight' has dtype I8",
        ),
    ],
)
def test_weights_of_another_model_are_refused_before_ray_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], change: dict[str, np.ndarray | None], said: str
) -> None:
    folder = shutil.copytree(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"), tmp_path / "model")
    hf = read_hf_config(str(folder))
    names = plugins.load().models.create(hf["model_type"]).weight_mapping(hf).hf_names
    tensors = {name: np.zeros(1, np.float32) for name in names} | change
    save_file({name: values for name, values in tensors.items() if values is not None}, folder / "model.safetensors")
    assert command.main([*RUN, f"model.path={folder}", f"run.dir={tmp_path}", "model.init=checkpoint"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"slime: {said.format(folder=folder)}")
    assert "Ray" not in shown.out + shown.err
    assert [file.name for file in tmp_path.iterdir()] == ["model"]
