"""A header says what safetensors says, and a file that safetensors does not open is refused with the reason."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from slime.errors import SlimeError
from slime.weights.file_tensors import SINGLE, bits_of, header, same_bytes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    kinds = {"F64": torch.float64, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn, "BOOL": torch.bool}
    tensors = {name: torch.ones(3, 5).to(dtype) for name, dtype in kinds.items()}
    save_file({**tensors, "none": torch.ones(0, 4), "one": torch.tensor(7)}, tmp_path / SINGLE, {"format": "pt"})
    return tmp_path


def test_what_safetensors_says(folder: Path) -> None:
    found = header(folder, SINGLE)
    with safe_open(folder / SINGLE, "pt") as opened:
        assert found.keys() == set(opened.keys())
        content = (folder / SINGLE).read_bytes()
        for name, each in found.items():
            there = opened.get_tensor(name)
            assert (list(each.shape), each.size) == (list(there.shape), there.nbytes)
            assert content[each.start : each.start + each.size] == there.reshape(-1).view(torch.uint8).numpy().tobytes()
            if name in ("F64", "BF16", "F8_E4M3", "BOOL"):
                assert each.dtype == name


def _rewritten(change: Callable[[dict[str, dict[str, object]]], object]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        content = file.read_bytes()
        length = int.from_bytes(content[:8], "little")
        entries = json.loads(content[8 : 8 + length])
        change(entries)
        text = json.dumps(entries).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "cut": (lambda file: os.truncate(file, file.stat().st_size - 1), "it is cut short"),
    "longer": (lambda file: file.write_bytes(file.read_bytes() + b"x"), "1 B behind its last tensor"),
    "header cut": (lambda file: os.truncate(file, 100), "its header alone has"),
    "empty": (lambda file: file.write_bytes(b""), "it has no header"),
    "text": (lambda file: file.write_text("<!DOCTYPE html>"), "it has no header"),
    "no JSON": (lambda file: file.write_bytes((4).to_bytes(8, "little") + b"abcd"), "its header is none"),
    "a list": (lambda file: file.write_bytes((2).to_bytes(8, "little") + b"[]"), "its header is none"),
    "other shape": (_rewritten(lambda entries: entries["F64"].update(shape=[3, 4])), "120 bytes for a tensor of F64"),
    "negative": (_rewritten(lambda entries: entries["F64"].update(shape=[-3, -5])), "its header is none"),
    "a gap": (_rewritten(lambda entries: entries.pop("BF16")), "its tensors do not lie one behind another"),
}


@pytest.mark.parametrize(("damage", "says"), DAMAGES.values(), ids=DAMAGES)
def test_what_safetensors_does_not_open(folder: Path, damage: Callable[[Path], object], says: str) -> None:
    damage(folder / SINGLE)
    with pytest.raises(SafetensorError):
        safe_open(folder / SINGLE, "pt").__enter__()
    with pytest.raises(SlimeError, match="is torn or no safetensors file") as caught:
        header(folder, SINGLE)
    assert says in str(caught.value)


def test_same_bytes(folder: Path) -> None:
    values = np.arange(2**21, dtype=np.float32)
    changed = values.copy()
    changed[-1] += 1
    content = {"a": values, "b": values.copy(), "c": changed, "d": values.reshape(2, -1).copy()}
    save_file({name: torch.from_numpy(array) for name, array in content.items()}, folder / "large")
    found = header(folder, "large")
    assert [same_bytes(folder, found["a"], found[name]) for name in "abcd"] == [True, True, False, False]


def test_bits_of_a_number() -> None:
    names = {"BOOL": 8, "U8": 8, "F8_E5M2": 8, "F4": 4, "BF16": 16, "C64": 64, "new": None}
    assert {name: bits_of(name) for name in names} == names
