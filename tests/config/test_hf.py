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


OF_A_MODEL = HF | {
    "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "rope_theta": 10000, "architectures": ["XForCausalLM"],
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "full_attention": {"rope_theta": 1e6}},
    "eos_token_id": [1, 2], "head_dim": None, "num_nextn_predict_layers": 0,
}  # fmt: skip
COUNT, POSITIVE = "a whole number from 1 to 1,000,000,000", "a positive number"


@pytest.mark.parametrize(
    ("name", "wanted"),
    {
        "hidden_size": COUNT, "vocab_size": COUNT, "num_attention_heads": COUNT,
        "head_dim": f"{COUNT}, or null", "num_nextn_predict_layers": "a whole number, or null",
        "rms_norm_eps": POSITIVE, "rope_theta": POSITIVE, "initializer_range": "a number",
        "tie_word_embeddings": "true or false, or null", "model_type": "a text",
        "architectures": "a list of texts, or null",
        "eos_token_id": "a token id or a list of them", "rope_scaling": "an object, or null",
    }.items(),
)  # fmt: skip
@pytest.mark.parametrize(
    "value",
    ['"128; rm"', "[[1]]", "null", "-1", "1.5", "1e400", "NaN", '{"a": {"b": 1}}', "1" + "0" * 400, "true", '"\\u202e"',
     '[1, "a"]', "0"],
)  # fmt: skip
def test_a_value_of_another_kind_is_refused_with_its_field(tmp_path: Path, name: str, wanted: str, value: str) -> None:
    """Each value is right for some of the fields: there the folder is read as it is."""
    read_hf_config(write(tmp_path, json.dumps(OF_A_MODEL)))
    text = json.dumps({**OF_A_MODEL, name: "here"}).replace('"here"', value)
    may_be = {
        "null": name not in ("hidden_size", "vocab_size", "num_attention_heads", "rms_norm_eps",
                             "rope_theta", "initializer_range", "model_type"),
        "1.5": name in ("rms_norm_eps", "rope_theta", "initializer_range"),
        "true": name == "tie_word_embeddings",
        '{"a": {"b": 1}}': name == "rope_scaling",
        '"128; rm"': name == "model_type",
        '"\\u202e"': name == "model_type",
        "0": name in ("num_nextn_predict_layers", "initializer_range", "eos_token_id"),
    }  # fmt: skip
    if may_be.get(value, False):
        assert name in read_hf_config(write(tmp_path, text))
        return
    with pytest.raises(SlimeError) as caught:
        read_hf_config(write(tmp_path, text))
    assert str(caught.value).startswith(f"{tmp_path}/config.json: '{name}' must be {wanted}, got ")
    assert len(str(caught.value)) < 300
    assert str(caught.value).isprintable()


def test_a_value_inside_an_object_is_refused_with_its_place(tmp_path: Path) -> None:
    text = json.dumps(OF_A_MODEL).replace("1000000.0", '"far"')
    with pytest.raises(SlimeError, match=r"'rope_scaling.full_attention.rope_theta' must be a positive number, got"):
        read_hf_config(write(tmp_path, text))


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
