"""Reward models in SGLang's own server, against transformers' classes in float32."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from slime.compose.compose import examine
from slime.config.paths import resolve
from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint
from slime_testing.engines import server

FAMILIES = {
    "llama": "pkg://slime_plugin_llama/assets/llama-tiny",
    "qwen2": "pkg://slime_plugin_qwen2/assets/qwen2-tiny",
    "qwen3_moe": "pkg://slime_plugin_qwen3/assets/qwen3-moe-tiny",
    "glm4": "pkg://slime_plugin_glm4/assets/glm4-tiny",
    "gemma3": "pkg://slime_plugin_gemma3/assets/gemma3-tiny",
}
"""SGLang has classes for sequence classification of the first two, that of the second with a bias that stays random;
of the others it has none, and the last one's has another name for text than its causal class."""
TOLERANCE = 1e-4
"""Of scores around 10, in float32: the two add in other orders. The largest difference seen was 3e-5."""


def draw(model: torch.nn.Module) -> None:
    """Weights of which none is trivial, and scores of some size."""
    generator = torch.Generator().manual_seed(2)
    for name, value in model.named_parameters():
        drawn = 0.1 * torch.randn(value.shape, generator=generator)
        value.data = 1 + drawn if value.dim() == 1 and "norm" in name else drawn * (10 if "score" in name else 1)


def written(source: Path, folder: Path) -> Any:
    """A reward model with the sizes of `source`: the folder's, and transformers' own."""
    hf = json.loads((source / "config.json").read_text())
    config = AutoConfig.for_model(hf.pop("model_type"), **hf)
    config.num_labels = 1
    model = AutoModelForSequenceClassification.from_config(config).float().eval()
    draw(model)
    model.save_pretrained(folder)
    model.config.pad_token_id = None  # all tokens are the text's
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(source / name, folder)
    return model


@contextmanager
def engine(folder: Path, log: Path) -> Iterator[Endpoint]:
    """A frozen engine as the laptop's run tells it to be."""
    composed = examine(["+model=glm4-tiny", "+cluster=local", f"rollout.engines.rm.model={folder}"])
    assert composed.topology
    assert composed.problems == []
    process = server(composed.topology, 1, host=LOOPBACK, log=log)
    try:
        yield process.start()
    finally:
        process.stop()


def ask(at: Endpoint, input_ids: list[list[int]]) -> list[float]:
    body = json.dumps({"input_ids": input_ids}).encode()
    request = Request(f"{at.url}/classify", body, {**at.headers, "Content-Type": "application/json"})
    with urlopen(request, timeout=200) as answer:
        found = json.load(answer)
    assert [len(each["embedding"]) for each in found] == [1] * len(input_ids)
    return [each["embedding"][0] for each in found]


def texts() -> list[list[int]]:
    """Of several lengths in one batch, one of them twice, and two with one beginning."""
    draw = random.Random(3)
    found = [[draw.randrange(3, 60) for _ in range(length)] for length in (1, 5, 17, 40, 40)]
    return [*found, found[3], [*found[3][:20], 7, 8, 9]]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("family", FAMILIES)
def test_an_engine_says_what_transformers_class_says(family: str, tmp_path: Path) -> None:
    model = written(resolve(FAMILIES[family]), tmp_path / "rm")
    with engine(tmp_path / "rm", tmp_path / "log") as at:
        found = ask(at, texts())
        with pytest.raises(HTTPError) as refused:
            ask(at, [[5] * (model.config.max_position_embeddings + 1)])
        assert "longer than the model's context length" in refused.value.read().decode()
    with torch.no_grad():
        wanted = [model(torch.tensor([text])).logits.item() for text in texts()]
    assert found == pytest.approx(wanted, abs=TOLERANCE)
    assert max(wanted) - min(wanted) > 1
    assert found[3] == found[5], "one text, one score"


def two_layers(size: int) -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(size, size), torch.nn.ReLU(), torch.nn.Linear(size, 1))


def one_layer(size: int) -> torch.nn.Module:
    return torch.nn.Linear(size, 1, bias=False)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("source", "architecture", "make_head"),
    [
        (FAMILIES["qwen2"], "Qwen2ForRewardModel", two_layers),
        ("pkg://slime_plugin_glm4/assets/glm4-moe-tiny", "Glm4MoeForSequenceClassification", one_layer),
    ],
    ids=["SGLang's own class", "a family of which transformers has no such class"],
)
def test_where_transformers_has_the_layers_alone_the_head_is_written_out_here(
    source: str, architecture: str, make_head: Callable[[int], torch.nn.Module], tmp_path: Path
) -> None:
    files = resolve(source)
    hf = json.loads((files / "config.json").read_text()) | {"num_nextn_predict_layers": 0}
    trunk = AutoModel.from_config(AutoConfig.for_model(hf.pop("model_type"), **hf)).float().eval()
    head = make_head(trunk.config.hidden_size)
    draw(trunk)
    draw(head)
    trunk.save_pretrained(tmp_path / "trunk")
    trunk.config.architectures, trunk.config.num_labels = [architecture], 1
    trunk.config.save_pretrained(tmp_path / "rm")
    weights = {f"model.{name}": value for name, value in load_file(tmp_path / "trunk/model.safetensors").items()}
    weights |= {f"score.{name}": value.contiguous() for name, value in head.state_dict().items()}
    save_file(weights, tmp_path / "rm/model.safetensors")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(files / name, tmp_path / "rm")
    with engine(tmp_path / "rm", tmp_path / "log") as at:
        found = ask(at, texts())
    with torch.no_grad():
        wanted = [head(trunk(torch.tensor([text])).last_hidden_state[0, -1]).item() for text in texts()]
    assert found == pytest.approx(wanted, abs=TOLERANCE)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_folder_without_the_head_ends_the_engine_and_says_so(tmp_path: Path) -> None:
    written(resolve(FAMILIES["llama"]), tmp_path / "rm")
    file = tmp_path / "rm/model.safetensors"
    save_file({name: value for name, value in load_file(file).items() if name != "score.weight"}, file)
    said = r"the head of a reward model is score.weight alone, and this one has \[\]"
    with pytest.raises(SlimeError, match=said), engine(tmp_path / "rm", tmp_path / "log"):
        pass
