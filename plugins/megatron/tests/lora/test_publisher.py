"""Trainer ranks publish adapters as they are: what travels when, and what the engine then answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.config.hf import read_hf_config
from slime.config.paths import resolve
from slime.engine_client.client import Completion
from slime.errors import SlimeError
from slime.net import LOOPBACK, Endpoint
from slime.types import Receipt
from slime_megatron.lora.engines import engine_fields
from slime_testing.engines import hf_tensors, running_engine
from slime_testing.generation import TOLERANCE, difference, generate
from slime_testing.models import transformers_model, write_checkpoint
from slime_testing.publishing import publish
from slime_testing.ranks import Rank, run_ranks

FOLDER = "pkg://slime_plugin_glm4/assets/glm4-tiny"
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj")
RANK = 4


@dataclass
class Version:
    """One that was published: on rank 0 with the merged weights, and what the engine answered."""

    receipt: Receipt
    merged: dict[str, Tensor]
    completion: Completion


def published(rank: Rank, engine: Endpoint, folder: str, words: list[str]) -> list[Version]:
    """Three versions, between the last two of which a faulty one is sent. Runs in a rank of its own."""
    from slime.compose.compose import compose
    from slime.topology.topology import read_topology
    from slime.weights.publisher.publisher import Publisher
    from slime_megatron.train.trainer import Trainer

    tokenizer = "model.tokenizer=pkg://slime_plugin_glm4/assets/glm4-tiny"
    model = ["+model=glm4-tiny", f"model.path={folder}", tokenizer, "model.init=checkpoint", "+cluster=local"]
    sizes = [f"cluster.{key}=2" for key in ("num_trainers", "devices_per_node")]
    lora = [f"train.lora.rank={RANK}", "train.lora.alpha=6", "train.lora.publish=adapters"]
    cfg = compose([*model, *sizes, *lora, *words, "run.name=published"])
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    publisher, found = Publisher(read_topology(cfg), trainer, LOOPBACK), []
    for version in (1, 2, 3):
        torch.manual_seed(version)
        learn(trainer)
        if version == 3 and rank.rank == 0:
            with pytest.raises(SlimeError, match="has no adapters"):
                publish(iter([("nothing", torch.zeros(3))]), [engine], 9, 1 << 12)
        torch.distributed.barrier()
        receipt = publisher.publish([engine], version, 1)
        merged = {name: tensor.clone() for name, tensor in trainer.export()}
        if receipt:
            found.append(Version(receipt, merged, generate(engine)))
    return found


@torch.no_grad()
def learn(trainer: Any) -> None:
    """As far from the first values as some steps would go; what all ranks hold stays equal on them."""
    for module in trainer.model.modules:
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.1)


@pytest.mark.slow
def test_weights_come_once_and_whenever_an_engine_lacks_them(tmp_path: Path) -> None:
    hf, folder = read_hf_config(FOLDER), tmp_path / "model"
    write_checkpoint(hf, folder)
    with running_engine(
        resolve(FOLDER), tmp_path / "engine.log", **engine_fields(RANK, LAYERS, on_gpus=False)
    ) as engine:
        for words in (["train.megatron.tensor_model_parallel_size=2"], ["weights.transport=broadcast"]):
            versions, others = run_ranks(published, 2, engine.endpoint, str(folder), words, timeout_s=200)
            assert others == []
            whole, alone, again = (each.receipt.num_bytes for each in versions)
            model = sum(tensor.nbytes for tensor in versions[0].merged.values())
            if words[0].startswith("train"):  # the others find an engine with weights
                assert whole == again == model + alone
            assert again == model + alone > 10 * alone
            for number, version in enumerate(versions, 1):
                assert version.completion.weight_version == number
                assert off_by(hf, version) <= TOLERANCE


@torch.no_grad()
def off_by(hf: Any, version: Version) -> float:
    model = transformers_model(hf).eval()
    for name, tensor in hf_tensors(model):
        tensor.copy_(version.merged[name])
    return difference(model, version.completion)
