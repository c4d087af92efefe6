"""Of several files in a folder those are read that transformers reads, and none where another reader takes others."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from subprocess import run

import numpy as np
import pytest
from safetensors.numpy import save_file

from slime.errors import SlimeError
from slime.weights.file_tensors import INDEX, SINGLE
from slime.weights.hf_files import HfFiles

ONE, TWO, THREE = ("model-0000{}-of-0000{}.safetensors".format(*which) for which in ((1, 2), (2, 2), (1, 3)))
HALVES = {"a": ONE, "b": TWO}


def put(folder: Path, file: str, *names: str, value: float = 0) -> None:
    save_file({name: np.full((2, 3), value, np.float32) for name in names}, folder / file)


def index(folder: Path, where: Mapping[str, str]) -> None:
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def halves(folder: Path) -> Path:
    put(folder, ONE, "a")
    put(folder, TWO, "b")
    index(folder, HALVES)
    return folder


def single(folder: Path) -> Path:
    put(folder, SINGLE, "a", "b", value=1)
    return folder


def files(folder: Path) -> dict[str, str]:
    return {name: found.file for name, found in HfFiles(folder).tensors.items()}


def refusal(folder: Path) -> str:
    with pytest.raises(SlimeError) as caught:
        HfFiles(folder)
    return str(caught.value)


def test_a_single_file_beside_shards_and_their_index_is_refused_by_both_names(tmp_path: Path) -> None:
    assert files(halves(tmp_path)) == HALVES
    said = refusal(single(tmp_path))
    assert said.startswith(f"{tmp_path}: there are two checkpoints: '{SINGLE}', which transformers reads, and '{ONE}'")
    for name in (ONE, TWO, INDEX):
        (tmp_path / name).unlink()
    assert set(files(tmp_path).values()) == {SINGLE}


def test_shards_without_an_index_are_another_checkpoint_if_they_hold_the_same_tensors(tmp_path: Path) -> None:
    put(single(tmp_path), ONE, "c")
    assert set(files(tmp_path).values()) == {SINGLE}
    put(tmp_path, ONE, "a")
    assert f"'{ONE}', for which there is no {INDEX}" in refusal(tmp_path)


@pytest.mark.parametrize(
    "beside",
    [
        "consolidated.safetensors",
        "model.fp16.safetensors",
        "pytorch_model.bin",
        "model-00001-of-00002.fp16.safetensors",
    ],
)
def test_what_transformers_leaves_alone_changes_nothing(tmp_path: Path, beside: str) -> None:
    (tmp_path / "one").mkdir()
    put(single(tmp_path / "one"), beside, "a", "b", value=2)
    assert set(files(tmp_path / "one").values()) == {SINGLE}
    (tmp_path / "several").mkdir()
    put(halves(tmp_path / "several"), beside, "a", "b", value=2)
    assert files(tmp_path / "several") == HALVES


def test_shards_of_another_count_that_the_index_does_not_name(tmp_path: Path) -> None:
    put(halves(tmp_path), THREE, "a", value=2)
    assert files(tmp_path) == HALVES
    (tmp_path / TWO).unlink()
    assert refusal(tmp_path) == (
        f"{tmp_path}: '{TWO}' is missing, which {INDEX} names. '{THREE}' is there and not in the index: fetch the "
        "shards and the index of one checkpoint."
    )


@pytest.mark.parametrize("where", [{}, HALVES])
def test_an_index_of_nothing_that_is_there_leaves_the_single_file(tmp_path: Path, where: dict[str, str]) -> None:
    index(single(tmp_path), where)
    assert set(files(tmp_path).values()) == {SINGLE}
    (tmp_path / SINGLE).unlink()
    assert "it names no tensor" in refusal(tmp_path) or f"'{ONE}' (and 1 more files) is missing" in refusal(tmp_path)


def test_an_index_may_name_the_single_file(tmp_path: Path) -> None:
    index(single(tmp_path), dict.fromkeys("ab", SINGLE))
    assert set(files(tmp_path).values()) == {SINGLE}


def test_a_tensor_in_two_shards_must_be_the_same_in_both(tmp_path: Path) -> None:
    put(halves(tmp_path), TWO, "a", "b")
    assert files(tmp_path).keys() == {"a", "b"}
    put(tmp_path, TWO, "a", "b", value=1)
    assert refusal(tmp_path).startswith(
        f"{tmp_path}: 'a' is in '{ONE}' and, with other values, in '{TWO}'. These files"
    )


@pytest.mark.parametrize("file", ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"])
def test_an_adapter_beside_a_model_is_not_passed_over(tmp_path: Path, file: str) -> None:
    assert files(single(tmp_path))
    (tmp_path / file).write_text("{}")
    said = refusal(tmp_path)
    assert f"'{file}' lies beside the model: transformers loads that adapter with it" in said
    assert "merge_and_unload" in said


def test_headers_are_read_without_numpy_or_torch(tmp_path: Path) -> None:
    """As where a plan alone is installed."""
    halves(tmp_path)
    code = (
        "import sys; from pathlib import Path; from slime.weights.elsewhere import checkpoint_of; "
        "from slime.weights.file_tensors import header; folder = Path(sys.argv[1]); "
        "print(sorted(name for file in checkpoint_of(folder) for name in header(folder, file)), "
        "{'numpy', 'torch', 'safetensors'} & sys.modules.keys())"
    )
    printed = run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=True).stdout
    assert printed == "['a', 'b'] set()\n"
