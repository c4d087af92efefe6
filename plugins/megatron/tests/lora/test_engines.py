"""Engines that get adapters as they are: what they answer, what they take, and which runs are refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.compose.compose import examine
from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.engines.software import Server
from slime.errors import SlimeError
from slime.plan.model import read_model
from slime.plugins import load
from slime.topology.links import Verb
from slime.types import Receipt
from slime_megatron.lora.engines import engine_fields
from slime_testing.engines import as_exported, running_engine
from slime_testing.generation import TOLERANCE, difference, generate
from slime_testing.models import random_model
from slime_testing.publishing import publish
from slime_tools.publish.part import Publishing
from weight_buckets.adapters import PREFIX, SCALE

RANK, SCALED_BY = 4, 2.0
DENSE = ("glm4-tiny", ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"), 2)
LATENT = ("glm4-moe-lite-tiny", ("q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "o_proj"), 1)
BUCKET_BYTES = 1 << 14
Tensors = Mapping[str, Tensor]


def adapters(weights: Tensors, layers: tuple[str, ...], seed: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Random ones, as they are published; and by the model's names what they add to its weights."""
    generator = torch.Generator().manual_seed(seed)
    published: dict[str, Tensor] = {}
    added: dict[str, Tensor] = {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if layer.rpartition(".")[2] in layers and weight.dim() == 2 and ".experts." not in name:
            down = 0.1 * torch.randn(RANK, weight.size(1), generator=generator)
            up = 0.1 * torch.randn(weight.size(0), RANK, generator=generator)
            published |= {f"{PREFIX}{layer}.lora_A.weight": down, f"{PREFIX}{layer}.lora_B.weight": up}
            added[name] = SCALED_BY * up @ down
    return {**published, SCALE: torch.tensor([SCALED_BY], dtype=torch.float64)}, added


@pytest.mark.slow
@pytest.mark.parametrize(("name", "layers", "tp"), [DENSE, LATENT])
def test_an_engine_answers_as_the_merged_model_does(
    name: str, layers: tuple[str, ...], tp: int, tmp_path: Path
) -> None:
    folder = f"pkg://slime_plugin_glm4/assets/{name}"
    hf, path = read_hf_config(folder), resolve(folder)
    model = random_model(hf, seed=1).eval()
    weights = as_exported(model, folder)
    told = engine_fields(RANK, layers, on_gpus=False)
    with running_engine(path, tmp_path / "engine.log", tp_size=tp, **told) as engine:
        of_first, _ = adapters(weights, layers, 1)
        with pytest.raises(SlimeError, match="of adapters alone, and the engine has no weights yet"):
            give(engine, of_first, 1)
        with pytest.raises(SlimeError, match="has no adapters, for which the engine was started"):
            give(engine, weights, 1)
        whole = give(engine, {**weights, **of_first}, 1).num_bytes
        sizes = []
        for version in (1, 2, 3):
            published, added = adapters(weights, layers, version)
            if version > 1:
                sizes.append(give(engine, published, version).num_bytes)
            require_merged(model, added, engine, version)
        assert sizes == [sum(tensor.nbytes for tensor in of_first.values())] * 2
        assert 10 * sizes[0] < whole
        refuse(engine, published)
        give(engine, published, 4)  # as it is after a fault, the weights are those of the first version
        require_merged(model, added, engine, 4)


def give(engine: Server, tensors: Tensors, version: int) -> Receipt:
    return publish(iter(tensors.items()), [engine.endpoint], version, BUCKET_BYTES)


def require_merged(model: torch.nn.Module, added: Tensors, engine: Server, version: int) -> None:
    """The engine's log-probs are those of the model with the sums for weights, by transformers in fp32."""
    completion = generate(engine.endpoint)
    assert completion.weight_version == version
    state = model.state_dict(keep_vars=True)
    with torch.no_grad():
        before = {name: state[name].clone() for name in added}
        for name, sum_ in added.items():
            state[name].add_(sum_)
        off_by = difference(model, completion)
        for name, value in before.items():
            state[name].copy_(value)
    assert off_by <= TOLERANCE


def refuse(engine: Server, good: Tensors) -> None:
    """What does not fit is named; the engine answers with no version until the next one is good."""
    first = next(iter(good))
    alone = {name: tensor for name, tensor in good.items() if name != first}
    elsewhere = {**alone, first.replace("layers.0", "layers.77"): good[first]}
    for faulty, words in (
        (alone, "came without the other matrix of its adapter"),
        (elsewhere, "came without the other matrix of its adapter"),
        ({**good, f"{PREFIX}x.lora_A.weight": good[first], f"{PREFIX}x.lora_B.weight": good[first]}, "no place for"),
        ({name: tensor for name, tensor in good.items() if name != SCALE}, f"without '{SCALE}'"),
        ({name: tensor.bfloat16() for name, tensor in good.items()}, "the engine computes in torch.float32"),
    ):
        with pytest.raises(SlimeError, match=words):
            give(engine, faulty, 4)
    with pytest.raises(SlimeError, match="serves 'incomplete' weights"):
        generate(engine.endpoint)


BESIDE = ("train.lora.rank=8", "train.lora.publish=adapters")
TINY = ("+model=glm4-tiny", "+cluster=local", "train.checkpoint.interval=null", *BESIDE)
MOE = ("+model=glm4-moe-tiny", "+cluster=local", "train.checkpoint.interval=null", "train.mtp_loss_scale=null", *BESIDE)
ATTENTION = "train.lora.targets=[q_proj,k_proj,v_proj,o_proj]"


def problems(*words: str) -> list[str]:
    return [str(problem) for problem in examine(words).problems]


def test_engines_that_can_are_told() -> None:
    for words in (TINY, (*MOE, ATTENTION)):
        composed = examine(words)
        assert composed.problems == []
    [engine] = composed.topology.engines
    told: Any = {key: engine.fields[key] for key in ("enable_lora", "max_lora_rank", "lora_target_modules")}
    assert json.loads(json.dumps(told)) == {
        "enable_lora": True,
        "max_lora_rank": 8,
        "lora_target_modules": ["k_proj", "o_proj", "q_proj", "v_proj"],
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((*TINY, "weights.transport=disk"), "weights.transport=disk stores each"),
        ((*TINY, "train.lora.targets=[q_proj,o_proj]"), "takes 'q_proj' together with 'v_proj'"),
        (MOE, "gives routed experts adapters too where 'down_proj' has one; name others in train.lora.targets"),
        ((*TINY, "+rollout.sglang.speculative_algorithm=NGRAM"), "of rollout.sglang.speculative_algorithm=NGRAM"),
        ((*TINY, "rollout.fp8=block"), "engines that quantise weights"),
        (("+model=glm4-9b", "+cluster=h200x1", *BESIDE), "those that take turns on devices give them up"),
    ],
)
def test_engines_that_cannot_are_refused(words: tuple[str, ...], sentence: str) -> None:
    assert any(sentence in line for line in problems(*words)), problems(*words)


def test_the_plan_says_what_a_version_moves() -> None:
    words = ("+model=glm4-9b", "+cluster=h100x8-split", "train.lora.rank=32", "train.lora.publish=adapters")
    composed = examine(words)
    assert composed.problems == []
    (part,) = (part for part in read_model(composed, load()).parts if isinstance(part, Publishing))
    model = 18_800_558_080  # bytes of GLM-4-9B in bf16, twice its published number of parameters
    # Rank 32, by hand: queries, keys, values; what attention gives; gate and up (one matrix of the checkpoint); down.
    layer = 32 * ((4096 + 4096) + 2 * (4096 + 256) + (4096 + 4096) + (4096 + 27392) + (13696 + 4096))
    assert {link.num_bytes for link in part.links if link.verb is Verb.hand_over} == {2 * 40 * layer}
    assert part.first_bytes == part.document()["publish_first_bytes"] == model + 2 * 40 * layer
    [(_, lines)] = part.sections()
    assert "first      an engine's first version has the model's weights too: 18.991 GB" in "\n".join(lines)
