"""Reading config.json, and paths into packages."""

import json
from pathlib import Path

import pytest

from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.errors import SlimeError

HF = {
    "model_type": "x",
    "num_hidden_layers": 4,
    "layer_types": ["a", "b", "a", "b"],
    "stop": [1, 2, 3],
    "hidden_size": 8,
}


def write(folder: Path, text: str) -> str:
    (folder / "config.json").write_text(text)
    return str(folder)


def test_cut_keeps_the_first_layers(tmp_path: Path) -> None:
    hf = read_hf_config(write(tmp_path, json.dumps(HF)), num_layers=2)
    assert hf == {**HF, "num_hidden_layers": 2, "layer_types": ["a", "b"]}


@pytest.mark.parametrize(
    ("text", "num_layers", "says"),
    [
        ('{"model_type": "x"', None, "config.json: not JSON"),
        ("[]", None, "config.json: not a JSON object"),
        ('{"num_hidden_layers": 4}', None, "config.json: 'model_type' is missing"),
        ('{"model_type": "x"}', None, "config.json: 'num_hidden_layers' is missing"),
        (json.dumps(HF), 5, "config.json: model.num_layers is 5, but the model has 4 layers"),
    ],
)
def test_unusable_config(tmp_path: Path, text: str, num_layers: int | None, says: str) -> None:
    with pytest.raises(SlimeError, match=says):
        read_hf_config(write(tmp_path, text), num_layers)


def test_folder_without_config(tmp_path: Path) -> None:
    with pytest.raises(SlimeError, match=r"there is no config.json. Name a folder"):
        read_hf_config(str(tmp_path))


def test_file_inside_a_package() -> None:
    assert resolve("pkg://slime/config/schema.py").is_file()
    assert resolve("pkg://slime.config/schema.py") == resolve("pkg://slime/config/schema.py")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("pkg://slime/config/shema.py", "there is no 'pkg://slime/config/shema.py'. Did you mean 'schema.py'?"),
        (
            "pkg://slime/confi/schema.py",
            "confi is missing: there is no 'pkg://slime/confi/schema.py'. Did you mean 'con",
        ),
        (
            "pkg://no_such_package/x",
            "there is no installed package 'no_such_package'. Run 'pip install no_such_package'",
        ),
    ],
)
def test_missing_path_names_the_nearest(path: str, says: str) -> None:
    with pytest.raises(SlimeError) as error:
        resolve(path)
    assert says in str(error.value)
