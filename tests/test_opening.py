"""What a run refuses before anything expensive starts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from slime import command, plugins
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime_testing.ranks import Rank, run_ranks

TINY = "pkg://slime_plugin_glm4/assets/glm4-tiny"
RUN = ["+model=glm4-tiny", "+cluster=local"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokenizer.json", None, "{folder}: there is no tokenizer: neither tokenizer.json nor another vocabulary. "),
        ("tokenizer.json", '{"a": [1, ', "{folder}/tokenizer.json: is torn: it does not end as JSON does. Fetch the "),
        ("tokenizer_config.json", "[]", "{folder}/tokenizer_config.json: cannot be read (it holds no JSON object). "),
        ("generation_config.json", "{", "{folder}/generation_config.json: cannot be read (Expecting property name "),
        ("chat_template.jinja", None, "{folder}: the tokenizer has no chat template. Put the model's chat_template"),
        ("model.safetensors", "broken off", "{folder}: 'model.safetensors' is torn or no safetensors file (it has no"),
    ],
)
def test_a_download_that_broke_off_is_refused_before_ray_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: str | None, said: str
) -> None:
    folder = shutil.copytree(resolve(TINY), tmp_path / "model")
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
    folder = shutil.copytree(resolve(TINY), tmp_path / "model")
    hf = read_hf_config(str(folder))
    names = plugins.load().models.create(hf["model_type"]).weight_mapping(hf).hf_names
    tensors = {name: np.zeros(1, np.float32) for name in names} | change
    save_file({name: values for name, values in tensors.items() if values is not None}, folder / "model.safetensors")
    assert command.main([*RUN, f"model.path={folder}", f"run.dir={tmp_path}", "model.init=checkpoint"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith(f"slime: {said.format(folder=folder)}")
    assert "Ray" not in shown.out + shown.err
    assert [file.name for file in tmp_path.iterdir()] == ["model"]


def _written(text: str) -> Callable[[Path], object]:
    return lambda file: file.write_text(text)


def _header(file: Path) -> None:
    file.write_bytes((2**62).to_bytes(8, "little") + file.read_bytes()[8:5000])


def _index(text: str) -> Callable[[Path], object]:
    return lambda file: file.with_name("model.safetensors.index.json").write_text(text)


def _adapter(file: Path) -> None:
    file.with_name("adapter_config.json").write_text("{}")


def _moved(file: Path) -> None:
    file.rename(file.with_name("model-00001-of-00002.safetensors"))
    _index('{"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}')(file)


POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n"
NO_FILE, NO_INDEX = (
    "'model.safetensors' is torn or no safetensors file (",
    "index.json: no valid index of safetensors (",
)
TORN = {
    "a huge header": (_header, NO_FILE),
    "a byte less": (lambda file: os.truncate(file, file.stat().st_size - 1), NO_FILE),
    "half": (lambda file: os.truncate(file, 5000), NO_FILE),
    "seven bytes": (lambda file: os.truncate(file, 7), NO_FILE),
    "empty": (_written(""), NO_FILE),
    "text": (_written("<html>404</html>"), NO_FILE),
    "a pointer": (_written(POINTER), "model.safetensors: it is a pointer of Git LFS, not the file itself. Run 'git"),
    "a missing shard": (
        _moved,
        "'model-00002-of-00002.safetensors' is missing, which model.safetensors.index.json names. 'model-00001-of-",
    ),
    "a pointer as index": (_index(POINTER), "index.json: it is a pointer of Git LFS, not the file itself"),
    "a torn index": (_index('{"weight_map": {"a'), f"{NO_INDEX}JSONDecodeError"),
    "a list as index": (_index("[]"), f"{NO_INDEX}TypeError"),
    "an index of lists": (_index('{"weight_map": {"a": [1]}}'), f"{NO_INDEX}it names [1] as a file). Download"),
    "an index of others": (_index('{"weight_map": {"a": "../b"}}'), f'{NO_INDEX}it names "../b" as a file). Download'),
    "a second checkpoint": (
        lambda file: shutil.copy(file, file.with_name("model-00001-of-00001.safetensors")),
        ": there are two checkpoints: 'model.safetensors', which transformers reads, and 'model-00001-of-00001.safe",
    ),
    "an adapter": (_adapter, ": 'adapter_config.json' lies beside the model: transformers loads that adapter with it"),
    "an index in vain": (_index('{"weight_map": {"a": "model.safetensors"}}'), "'model.safetensors' lacks 'a', which"),
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model, with weights."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    run_ranks(write_random, 1, folder)
    return folder


def write_random(rank: Rank, folder: Path) -> None:
    """In a process of its own, as what it sets up for a rank stays."""
    from slime_tools.convert.command import convert_random

    convert_random(TINY, folder, 0)


@pytest.mark.parametrize(("damage", "said"), TORN.values(), ids=TORN)
def test_weights_that_are_torn_are_told_by_plan_and_preflight(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], whole: Path, damage: Callable[[Path], object], said: str
) -> None:
    folder = shutil.copytree(whole, tmp_path / "model")
    words = [*RUN, f"model.path={folder}", f"run.dir={tmp_path}", "model.init=checkpoint"]
    assert command.main(["plan", *words]) == 0
    assert capsys.readouterr().err == "", "these weights are whole"
    damage(folder / "model.safetensors")
    assert command.main(["plan", *words]) == 0
    planned = capsys.readouterr().err
    assert planned.startswith(f"slime: before it can run: {folder}")
    assert said in planned
    assert command.main(["preflight", *words]) == 2
    assert capsys.readouterr().err == planned.replace("before it can run: ", "")
    assert len(planned.splitlines()) == 1
