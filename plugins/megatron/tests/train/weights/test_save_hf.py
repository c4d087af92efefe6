"""The exported folder is one that readers of HF checkpoints take, or is not there at all."""

from __future__ import annotations

import json
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from slime.errors import SlimeError
from slime.learner import left_out
from slime.weights.file_tensors import INDEX
from slime.weights.hf_files import HfFiles
from slime_megatron.train.weights.save_hf import save_hf

TENSORS = [(f"t{number}", torch.full((10,), number, dtype=torch.bfloat16)) for number in range(5)]  # 20 bytes each


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    (folder / "config.json").write_text('{"num_hidden_layers": 4, "torch_dtype": "float32"}')
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for of_other_weights in (INDEX, "adapter_config.json", "hf_quant_config.json"):
        (folder / of_other_weights).write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights of before")
    return folder


def test_one_small_file_has_no_index(source: Path, tmp_path: Path) -> None:
    save_hf(TENSORS, source, tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "num_hidden_layers": 4,
        "dtype": "bfloat16",
        "torch_dtype": "bfloat16",
    }


def test_weights_may_be_read_by_whom_the_rest_may(source: Path, tmp_path: Path) -> None:
    before = os.umask(0o026)
    try:
        save_hf(TENSORS, source, tmp_path / "out")
    finally:
        os.umask(before)
    assert {stat.filemode(file.stat().st_mode) for file in (tmp_path / "out").iterdir()} == {"-rw-r-----"}


def test_shards_stay_under_their_limit_and_the_index_names_them(source: Path, tmp_path: Path) -> None:
    save_hf(TENSORS, source, tmp_path / "out", shard_bytes=40)
    files = HfFiles(tmp_path / "out")
    assert {found.file for found in files.tensors.values()} == {
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    }
    assert json.loads((tmp_path / "out" / INDEX).read_text())["metadata"] == {"total_size": 100}
    for name, tensor in TENSORS:
        assert torch.equal(load_file(tmp_path / "out" / files.tensors[name].file)[name], tensor)


def test_config_of_a_cut_model_is_the_one_written(source: Path, tmp_path: Path) -> None:
    save_hf(TENSORS, source, tmp_path / "out", hf={"num_hidden_layers": 2})
    assert json.loads((tmp_path / "out/config.json").read_text())["num_hidden_layers"] == 2


@pytest.mark.parametrize("has_copy", [True, False])
def test_copies_are_written_where_the_source_has_them(source: Path, tmp_path: Path, has_copy: bool) -> None:
    for name in (INDEX, "adapter_config.json"):
        (source / name).unlink()
    before = {"t1": torch.zeros(10), **({"t1.again": torch.zeros(10)} if has_copy else {})}
    save_file(before, source / "model.safetensors")
    save_hf(TENSORS, source, tmp_path / "out", copies={"t1.again": "t1", "t2.again": "t2"})
    written = load_file(tmp_path / "out/model.safetensors")
    assert written.keys() == {*dict(TENSORS), *(["t1.again"] if has_copy else [])}
    assert all(torch.equal(written[name], dict(TENSORS)[name[:2]]) for name in written)


def test_a_source_whose_weights_are_gone_costs_no_export(source: Path, tmp_path: Path) -> None:
    save_hf(TENSORS, source, tmp_path / "out", copies={"t1.again": "t1"})
    assert load_file(tmp_path / "out/model.safetensors").keys() == dict(TENSORS).keys()


def test_existing_folder_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(SlimeError, match="exists already"):
        save_hf(TENSORS, source, source)


def test_interrupted_export_leaves_nothing_and_the_next_one_works(source: Path, tmp_path: Path) -> None:
    def torn() -> Iterator[tuple[str, torch.Tensor]]:
        yield TENSORS[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_hf(torn(), source, tmp_path / "out", shard_bytes=10)
    assert not (tmp_path / "out").exists()
    save_hf(TENSORS, source, tmp_path / "out")
    assert len(HfFiles(tmp_path / "out").tensors) == len(TENSORS)


def test_full_disk_is_named(source: Path, tmp_path: Path) -> None:
    large = [("large", torch.zeros(2**18))]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, before[1]))
    try:
        with pytest.raises(SlimeError, match=r"out: .*full"):
            save_hf(large, source, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out").exists()


COPIED = (
    "generation_config.json",
    "preprocessor_config.json",
    "modeling_mine.py",
    "vocab.bpe",
    "tokenizer.model",
    "merges.txt",
    "LICENSE",
    "additional_chat_templates/tools.jinja",
)
LEFT_OUT = ("adapter_config.json", "hf_quant_config.json", "quantize_config.json", "README.md", "figure.png")


def test_what_goes_along_and_what_is_left_out(source: Path, tmp_path: Path) -> None:
    """Files that would have a reader take other weights, or these for packed ones, stay behind, and are told."""
    (source / "additional_chat_templates").mkdir()
    for name in (*COPIED, *LEFT_OUT, "pytorch_model.bin", "pytorch_model.bin.index.json", ".gitattributes"):
        (source / name).write_text("{}")
    config = {"num_hidden_layers": 4, "quantization_config": {"quant_method": "fp8"}, "auto_map": {"AutoModel": "m.M"}}
    (source / "config.json").write_text(json.dumps(config))
    save_hf(TENSORS, source, tmp_path / "out")
    assert all((tmp_path / "out" / name).is_file() for name in COPIED)
    assert left_out(source, tmp_path / "out") == sorted(LEFT_OUT)
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert "quantization_config" not in written
    assert written["auto_map"] == config["auto_map"]


def test_a_tokenizer_in_newer_words_is_respelled_and_another_is_copied_as_it_is(source: Path, tmp_path: Path) -> None:
    for folder, text in (("newer", '{"tokenizer_class":"TokenizersBackend"}'), ("older", '{"eos_token":"</s>"}')):
        (source / "tokenizer_config.json").write_text(text)
        save_hf(TENSORS, source, tmp_path / folder)
    newer, older = ((tmp_path / folder / "tokenizer_config.json").read_text() for folder in ("newer", "older"))
    assert json.loads(newer) == {"tokenizer_class": "PreTrainedTokenizerFast"}
    assert older == text
