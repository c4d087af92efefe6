"""Weights that are there in another form are named, with the way to safetensors; random ones are offered to nobody."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from slime.errors import SlimeError
from slime.weights.file_tensors import INDEX, SINGLE
from slime.weights.hf_files import HfFiles
from slime.weights.other_forms import recognised


def refusal(folder: Path) -> str:
    with pytest.raises(SlimeError) as caught:
        HfFiles(folder)
    return str(caught.value)


FORMS = {
    "pytorch_model.bin": "are there as 'pytorch_model.bin', not as safetensors. Write them as safetensors and take",
    "pytorch_model-00001-of-00002.bin": "save_pretrained(f + '-safetensors')",
    "pytorch_model_fsdp.bin": "FSDP's whole state dict",
    "pytorch_model_fsdp_0/": "Run 'accelerate merge-weights",
    "model-q4_k_m.gguf": "gguf_file='model-q4_k_m.gguf'",
    "consolidated.00.pth": "Meta's own code",
    "consolidated.safetensors": "not those of transformers",
    "model-00001-of-00002.safetensors": f"but no {INDEX}. Fetch {INDEX}",
    "model.fp16.safetensors": f"model.fp16.safetensors {{folder}}/{SINGLE}",
    "model [1].safetensors": "'model [1].safetensors' is there",
    "model.safetensors.index.fp16.json": "variant='fp16'",
    "adapter_config.json": "Merge it into its base model: PEFT's",
    "global_step10/": "a checkpoint of DeepSpeed ('global_step10')",
    "iter_0000010/": "a checkpoint of Megatron-LM",
    "metadata.json": "Set model.weights={folder}",
    "__0_0.distcp": "a checkpoint of torch.distributed",
    "model_world_size_8_rank_0.pt": "as verl saves them",
    "tf_model.h5": "of TensorFlow or Flax",
    "model.onnx": "a graph of ONNX",
    "model.pth": "a file of torch.save",
}


@pytest.mark.parametrize(("file", "says"), FORMS.items(), ids=FORMS)
def test_a_form_is_named(tmp_path: Path, file: str, says: str) -> None:
    (tmp_path / "optimizer.pt").touch()
    assert recognised(tmp_path) is None
    (tmp_path / file).mkdir() if file.endswith("/") else (tmp_path / file).write_text("{}")
    said = refusal(tmp_path)
    assert says.format(folder=tmp_path) in said
    assert "random" not in said


def test_the_base_of_an_adapter(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "some/base"}))
    assert "Merge it into 'some/base': PEFT's" in refusal(tmp_path)


def test_weights_of_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-20").mkdir()
    (tmp_path / "checkpoint-20" / SINGLE).touch()
    assert f"but in 'checkpoint-20'. Name {tmp_path / 'checkpoint-20'}." in refusal(tmp_path)


def test_a_download_that_has_not_ended(tmp_path: Path) -> None:
    (tmp_path / ".cache/huggingface/download").mkdir(parents=True)
    (tmp_path / ".cache/huggingface/download/xyz.incomplete").touch()
    assert "its download is not complete. Run the same 'hf download' again." in refusal(tmp_path)


def test_a_link_into_a_cache_that_was_emptied(tmp_path: Path) -> None:
    (tmp_path / SINGLE).symlink_to(tmp_path / "blobs/0")
    assert f"'{SINGLE}' is a link to a file that is not there. Download the checkpoint again." in refusal(tmp_path)


def test_nothing(tmp_path: Path) -> None:
    assert refusal(tmp_path) == (
        f"{tmp_path}: there is neither {INDEX} nor {SINGLE}. Fetch the weights, or set model.init=random."
    )
    assert "there is no such folder" in refusal(tmp_path / "absent")
