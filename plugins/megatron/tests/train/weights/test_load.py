"""What is wrong with a checkpoint is said by name, before anything is built or written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import slime_megatron.multi_token_prediction as mtp
from slime.errors import SlimeError
from slime.models.mapping import WeightMapping
from slime.weights.file_tensors import INDEX, SINGLE
from slime.weights.hf_files import HfFiles
from slime_megatron.train.weights.load import load_hf
from slime_megatron.transformer import decoder, embeddings, output

VOCAB, HIDDEN = 8, 4


def mapping(num_layers: int = 2) -> WeightMapping:
    rules = embeddings.rules(VOCAB) + decoder.norm_rules() + output.rules(VOCAB, tied=False)
    return WeightMapping(rules, num_layers)


def predicting(num_layers: int = 2) -> WeightMapping:
    """The same with a multi-token prediction layer."""
    prefix = f"model.layers.{num_layers}."
    rules = mapping(num_layers).rules + mtp.rules(decoder.norm_rules(), prefix)
    return WeightMapping(rules, num_layers, copies=mtp.copies(prefix))


def tensors(num_layers: int = 2) -> dict[str, torch.Tensor]:
    return {name: torch.ones(HIDDEN) for name in mapping(num_layers).hf_names}


def write(folder: Path, content: dict[str, torch.Tensor], num_layers: int = 2, **hf: int) -> Path:
    save_file(content, folder / SINGLE)
    (folder / "config.json").write_text(json.dumps({"model_type": "tiny", "num_hidden_layers": num_layers, **hf}))
    return folder


def refusal(folder: Path, wanted: WeightMapping | None = None, modules: Sequence[torch.nn.Module] = ()) -> str:
    with pytest.raises(SlimeError) as caught:
        load_hf(modules, wanted or mapping(), folder)
    return str(caught.value)


def test_complete_checkpoint_is_taken(tmp_path: Path) -> None:
    load_hf([], mapping(), write(tmp_path, tensors()))


def test_missing_and_misspelt_tensor(tmp_path: Path) -> None:
    content = tensors()
    content["model.layers.1.input_layer_norm.weight"] = content.pop("model.layers.1.input_layernorm.weight")
    assert refusal(write(tmp_path, content)) == (
        f"{tmp_path}: the tensor 'model.layers.1.input_layernorm.weight' is missing. Check that the checkpoint and its "
        "config.json belong together. The nearest name is 'model.layers.1.input_layer_norm.weight'."
    )


def test_surplus_tensors(tmp_path: Path) -> None:
    content = tensors() | {f"model.vision.{number}": torch.ones(1) for number in range(3)}
    assert "the tensor 'model.vision.0' (and 2 more) belongs to no part of the model" in refusal(
        write(tmp_path, content)
    )


def test_layers_behind_a_cut_are_ignored_and_only_those(tmp_path: Path) -> None:
    load_hf([], mapping(num_layers=1), write(tmp_path, tensors(num_layers=3), num_layers=3))
    assert "'model.layers.2.input_layernorm.weight' (and 1 more) belongs to no part" in refusal(
        write(tmp_path, tensors(num_layers=3), num_layers=2), mapping(num_layers=1)
    )


def test_prediction_layer_that_the_family_does_not_have_is_ignored(tmp_path: Path) -> None:
    load_hf([], mapping(), write(tmp_path, tensors(num_layers=3), num_nextn_predict_layers=1))
    assert "model.layers.2" in refusal(write(tmp_path, tensors(num_layers=3)))


def test_prediction_layer_is_part_of_the_model(tmp_path: Path) -> None:
    content = {name: torch.ones(HIDDEN) for name in predicting().hf_names}
    copies = {name: torch.ones(HIDDEN) for name in predicting().copies}
    for complete in (content, content | copies):
        load_hf([], predicting(), write(tmp_path, complete, num_nextn_predict_layers=1))
    surplus = {"model.layers.2.ehproj.weight": torch.ones(1)}
    message = refusal(write(tmp_path, content | surplus, num_nextn_predict_layers=1), predicting())
    assert "'model.layers.2.ehproj.weight' belongs to no part of the model" in message
    del content["model.layers.2.eh_proj.weight"]
    message = refusal(write(tmp_path, content, num_nextn_predict_layers=1), predicting())
    assert "'model.layers.2.eh_proj.weight' is missing" in message


def test_checkpoint_saved_without_its_prediction_layer(tmp_path: Path) -> None:
    assert refusal(write(tmp_path, tensors(), num_nextn_predict_layers=1), predicting()) == (
        f"{tmp_path}: the multi-token prediction layer is missing, all of its 6 tensors. If the checkpoint was saved "
        "without it, set num_nextn_predict_layers to 0 in its config.json."
    )


def tied() -> WeightMapping:
    """The model with its embeddings as output layer."""
    rules = embeddings.rules(VOCAB) + decoder.norm_rules() + output.rules(VOCAB, tied=True)
    return WeightMapping(rules, 2)


def test_a_copy_of_tied_embeddings_is_taken_if_it_is_equal(tmp_path: Path) -> None:
    content = tensors()
    load_hf([], tied(), write(tmp_path, content))
    del content["lm_head.weight"]
    load_hf([], tied(), write(tmp_path, content))
    for copy in (
        torch.full((HIDDEN,), 2.0),
        torch.ones(HIDDEN + 1),
        torch.full((HIDDEN,), 1.0625, dtype=torch.float16),
    ):
        message = refusal(write(tmp_path, {**content, "lm_head.weight": copy}), tied())
        assert "config.json ties 'lm_head.weight' to 'model.embed_tokens.weight' (tie_word_embeddings)" in message
        assert "set tie_word_embeddings to false" in message
    load_hf([], tied(), write(tmp_path, {**content, "lm_head.weight": torch.ones(HIDDEN, dtype=torch.bfloat16)}))


def test_the_copy_alone_stands_for_tied_embeddings(tmp_path: Path) -> None:
    content = tensors()
    del content["model.embed_tokens.weight"]
    load_hf([], tied(), write(tmp_path, content))
    assert "'model.embed_tokens.weight' is missing" in refusal(tmp_path)


def test_what_older_code_stored_and_every_reader_computes(tmp_path: Path) -> None:
    layer = "model.layers.1.self_attn."
    buffers = {
        f"{layer}rotary_emb.inv_freq": torch.ones(2),
        f"{layer}rotary_emb.cos_cached": torch.ones(1, 1, 3, 2),
        "model.rotary_emb.inv_freq": torch.ones(2),
        f"{layer}bias": torch.ones(1, 1, 3, 3, dtype=torch.bool),
        f"{layer}masked_bias": torch.tensor(-1e4),
        "model.position_ids": torch.arange(3),
    }
    load_hf([], mapping(), write(tmp_path, tensors() | buffers))
    for name, tensor in {
        f"{layer}bias": torch.ones(3),
        f"{layer}q_proj.bias": torch.ones(1, 1, 3, 3),
        "model.rotary_emb.weight": torch.ones(2),
    }.items():
        message = refusal(write(tmp_path, tensors() | {name: tensor}))
        assert f"the tensor '{name}' belongs to no part of the model" in message


def test_a_file_that_transformers_would_read_alone(tmp_path: Path) -> None:
    write(tmp_path, content := tensors())
    norm = {"model.norm.weight": content.pop("model.norm.weight")}
    save_file(content, tmp_path / SINGLE)
    save_file(norm, tmp_path / "rest.safetensors")
    where = dict.fromkeys(content, SINGLE) | dict.fromkeys(norm, "rest.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    assert "'model.safetensors' is one of 2 files of the index" in refusal(tmp_path)
    (tmp_path / SINGLE).rename(tmp_path / "first.safetensors")
    where |= dict.fromkeys(content, "first.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    load_hf([], mapping(), tmp_path)


def test_the_prediction_layer_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    """transformers' model has no such layer: it misses nothing where it reads model.safetensors alone."""
    layer = {name: torch.ones(HIDDEN) for name in predicting().draft_names}
    write(tmp_path, tensors(), num_nextn_predict_layers=1)
    save_file(layer, tmp_path / "mtp.safetensors")
    where = dict.fromkeys(tensors(), SINGLE) | dict.fromkeys(layer, "mtp.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": where}))
    load_hf([], predicting(), tmp_path)


def test_a_type_that_is_not_loaded(tmp_path: Path) -> None:
    content = {name: tensor.double() for name, tensor in tensors().items()}
    message = refusal(write(tmp_path, content))
    assert "has dtype F64, not one of BF16, F16, F32. Write them in BF16 by transformers" in message


class Embedding(torch.nn.Module):
    """As much of a model as holds the embeddings."""

    def __init__(self, num_rows: int = VOCAB) -> None:
        super().__init__()
        self.embedding = torch.nn.Module()
        self.embedding.word_embeddings = torch.nn.Linear(HIDDEN, num_rows, bias=False)


def test_rows_behind_the_vocabulary_become_zeros(tmp_path: Path) -> None:
    module = Embedding(num_rows=VOCAB + 4)
    weight = module.embedding.word_embeddings.weight.detach()
    weight.fill_(torch.nan)
    given = torch.arange(1.0, VOCAB * HIDDEN + 1).view(VOCAB, HIDDEN)
    load_hf([module], mapping(), write(tmp_path, tensors() | {"model.embed_tokens.weight": given}))
    assert torch.equal(weight, torch.cat([given, torch.zeros(4, HIDDEN)]))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_value_that_is_no_number(tmp_path: Path, value: float) -> None:
    content = tensors() | {"model.embed_tokens.weight": torch.full((VOCAB, HIDDEN), 3e38)}
    module = Embedding()
    load_hf([module], mapping(), write(tmp_path, content))
    assert torch.equal(module.embedding.word_embeddings.weight, content["model.embed_tokens.weight"])
    content["model.embed_tokens.weight"][3, 1] = value
    message = refusal(write(tmp_path, content), modules=[module])
    assert message.startswith(
        f"{tmp_path}/model.safetensors: 'model.embed_tokens.weight' has values that are NaN or inf"
    )


def test_truncated_file(tmp_path: Path) -> None:
    file = write(tmp_path, tensors()) / SINGLE
    file.write_bytes(file.read_bytes()[:-3])
    assert f"{tmp_path}: 'model.safetensors' is torn or no safetensors file" in refusal(tmp_path)


def test_index_promises_a_file_that_is_not_there(tmp_path: Path) -> None:
    (write(tmp_path, tensors()) / SINGLE).unlink()
    index = {"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert f"{tmp_path}: 'model-00001-of-00002.safetensors' is missing" in refusal(tmp_path)


def test_index_promises_a_tensor_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path, tensors())
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"model.other": SINGLE}}))
    assert "lacks 'model.other', which model.safetensors.index.json promises" in refusal(tmp_path)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}"])
def test_torn_index(tmp_path: Path, content: str) -> None:
    (tmp_path / INDEX).write_text(content)
    assert "no valid index of safetensors" in refusal(tmp_path)


def test_folder_without_safetensors(tmp_path: Path) -> None:
    assert "set model.init=random" in refusal(tmp_path)


def test_tensors_of_several_files_are_found(tmp_path: Path) -> None:
    content = tensors()
    files = {name: f"part{number % 2}.safetensors" for number, name in enumerate(sorted(content))}
    for file in set(files.values()):
        save_file({name: content[name] for name in content if files[name] == file}, tmp_path / file)
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": files}))
    assert {name: found.file for name, found in HfFiles(tmp_path).tensors.items()} == files
