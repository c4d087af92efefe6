"""Safetensors as slime streams them are those of the safetensors library, in both directions."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, safe_open, save_file

from slime.digest import facts_of
from slime.weights.hf_files import HfFiles
from slime_tools.convert.tensors import DTYPES, NAMES, Output, TensorReader, as_bytes, into_files, write_file

TENSORS = {
    "scalar": torch.tensor(3.5),
    "vector": torch.arange(7, dtype=torch.bfloat16),
    "matrix": torch.arange(600, dtype=torch.float32).view(30, 20),
    "bytes": torch.arange(33, dtype=torch.uint8).view(11, 3),
    "fp8": torch.arange(64, dtype=torch.uint8).view(torch.float8_e4m3fn).view(8, 8),
    "cube": torch.randn(4, 3, 2),
    "empty": torch.empty(0, 5),
}


@pytest.fixture
def reader(tmp_path: Path) -> TensorReader:
    save_file(TENSORS, tmp_path / "model.safetensors")
    return TensorReader(HfFiles(tmp_path))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(as_bytes(one), as_bytes(other))


@pytest.mark.parametrize("name", TENSORS)
def test_whole_tensors_are_read(reader: TensorReader, name: str) -> None:
    assert same(reader.rows(name), TENSORS[name])
    assert torch.equal(torch.cat([torch.empty(0, dtype=torch.uint8), *reader.pieces(name)]), as_bytes(TENSORS[name]))


def test_rows_are_read(reader: TensorReader) -> None:
    assert same(reader.rows("matrix", 7, 19), TENSORS["matrix"][7:19])
    assert same(reader.rows("cube", 3), TENSORS["cube"][3:])


def test_pieces_follow_one_another(reader: TensorReader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slime_tools.convert.tensors.PIECE_BYTES", 1000)
    pieces = list(reader.pieces("matrix"))
    assert [len(piece) for piece in pieces] == [1000, 1000, 400]
    assert torch.equal(torch.cat(pieces), as_bytes(TENSORS["matrix"]))


def outputs(names: list[str]) -> list[Output]:
    return [Output(name, NAMES[TENSORS[name].dtype], tuple(TENSORS[name].shape)) for name in names]


def test_the_library_reads_what_is_written(tmp_path: Path) -> None:
    [file] = into_files(outputs(list(TENSORS)), 10**6)
    facts = write_file(tmp_path / "out", file, (TENSORS[tensor.name] for tensor in file.tensors))
    loaded = load_file(tmp_path / "out")
    assert loaded.keys() == TENSORS.keys()
    assert all(same(loaded[name], tensor) for name, tensor in TENSORS.items())
    with safe_open(tmp_path / "out", "pt") as opened:
        assert opened.metadata() == {"format": "pt"}  # which transformers insists on
    assert facts == facts_of(tmp_path / "out")
    assert file.num_bytes == (tmp_path / "out").stat().st_size


def test_order_is_kept_where_every_tensor_is_aligned() -> None:
    [file] = into_files(outputs(["fp8", "matrix", "vector"]), 10**6)
    assert [tensor.name for tensor in file.tensors] == ["fp8", "matrix", "vector"]
    [file] = into_files(outputs(["bytes", "vector", "matrix"]), 10**6)  # 33 bytes: what follows would not be
    assert [tensor.name for tensor in file.tensors] == ["matrix", "vector", "bytes"]


def test_files_stay_under_their_limit() -> None:
    tensors = [Output(str(number), "BF16", (number,)) for number in (5, 5, 50, 3, 3)]
    files = into_files(tensors, 20)
    assert [[tensor.name for tensor in file.tensors] for file in files] == [["5", "5"], ["50"], ["3", "3"]]
    assert [file.name for file in files] == [f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


def test_every_dtype_has_the_size_that_safetensors_gives_it(tmp_path: Path) -> None:
    tensors = {name: torch.zeros(3, dtype=torch.uint8).to(dtype) for name, dtype in DTYPES.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    files = HfFiles(tmp_path)
    assert {name: tensor.dtype for name, tensor in files.tensors.items()} == {name: name for name in DTYPES}
    assert all(same(TensorReader(files).rows(name), tensor) for name, tensor in tensors.items())
