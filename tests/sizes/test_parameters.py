"""Parameters of models and ranks: against published totals, and against Megatron-core's own modules."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from typing import Any

import pytest

import slime_megatron.sparse_attention as dsa
from slime.layout import read_grid
from slime.models.mapping import Rule, WeightMapping
from slime.plugins import load
from slime.sizes.parameters import Weight, held_by_stage, unknown_parameter, weights_of
from slime_megatron.transformer import embeddings
from slime_testing.ranks import Rank, run_ranks
from slime_tools.publish.part import owned_bytes

TP, PP, EP, ETP, CP = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "context_parallel_size",
)


def config_of(package: str, name: str) -> dict[str, Any]:
    text = (files(package) / "assets" / name / "config.json").read_text()
    hf: dict[str, Any] = json.loads(text)
    return hf


def read(hf: dict[str, Any]) -> tuple[dict[str, Any], list[Weight]]:
    bridge = load().models.create(hf["model_type"])
    model = {**bridge.transformer_config(hf), "vocab_size": hf["vocab_size"]}
    return model, weights_of(model, bridge.weight_mapping(hf))


@pytest.mark.parametrize(
    ("package", "name", "published"),
    [
        ("slime_plugin_deepseek_v3", "DeepSeek-R1", 684_489_845_504),
        ("slime_plugin_glm4", "GLM-4.5", 358_337_791_296),
        ("slime_plugin_glm4", "GLM-4.5-Air", 110_468_824_832),
        ("slime_plugin_glm4", "GLM-4-9B-0414", 9_400_279_040),
        ("slime_plugin_qwen3", "Qwen3-30B-A3B", 30_532_122_624),
        ("slime_plugin_mimo", "MiMo-7B-RL", 7_833_409_536),
    ],
)
def test_published_totals(package: str, name: str, published: int) -> None:
    """The Hub's counts, in which a prediction layer numbered behind the last brings copies of embeddings and head."""
    hf = config_of(package, name)
    _, weights = read(hf)
    mapping = load().models.create(hf["model_type"]).weight_mapping(hf)
    copies = len(mapping.copies) * hf["vocab_size"] * hf["hidden_size"]
    assert sum(weight.numel for weight in weights) + copies == published


def test_only_choosing_layers_have_an_indexer() -> None:
    _, weights = read(config_of("slime_plugin_glm5", "GLM-5.2"))
    layers = {weight.layer for weight in weights if weight.owner is dsa.INDEXER and not weight.drafts}
    assert {0, 1, 2, 6, 74} < layers
    assert 3 not in layers


def test_a_block_of_somebody_elses_is_named() -> None:
    rules = (*embeddings.rules(96), Rule("decoder.layers.{layer}.self_attention.gate.weight", ("gate",)))
    assert unknown_parameter(WeightMapping(rules, 1)) == "decoder.layers.{layer}.self_attention.gate.weight"
    assert unknown_parameter(WeightMapping(rules[:1], 1)) is None


def built(rank: Rank, model: str, layouts: list[dict[str, Any]]) -> list[tuple[int, ...]]:
    """By layout: pipeline stage, parameters of this rank that learn, dense and of experts, and those that do not; bytes
    that it exports, in all and of what not every rank holds."""
    from megatron.core import parallel_state

    from slime.compose.compose import compose
    from slime.config.hf import read_hf_config
    from slime_megatron.train import megatron
    from slime_megatron.train.weights.export import take_inventory

    counts: list[tuple[int, ...]] = []
    for number, layout in enumerate(layouts):
        keys = [f"train.megatron.{key}={value}" for key, value in layout.items() if key != "mtp"]
        keys += [f"train.mtp_loss_scale={0.2 if layout.get('mtp') else 'null'}"]
        cluster = [f"cluster.{key}={rank.world_size}" for key in ("num_trainers", "devices_per_node")]
        cfg = compose([f"+model={model}", "+cluster=local", "run.name=counted", *cluster, *keys])
        if number:
            megatron.make_groups(cfg.train.megatron, cfg.run.seed)
        else:
            megatron.initialize(cfg, *rank)
        hf = read_hf_config(cfg.model.path)
        bridge = load().models.create(cfg.model.family)
        numbers = [0, 0, 0]
        modules = megatron.build(cfg, bridge, hf).modules
        for module in modules:
            for name, parameter in module.named_parameters():
                numbers[2 if not parameter.requires_grad else ".experts." in name] += parameter.numel()
            numbers[2] += sum(value.numel() for name, value in module.named_buffers() if "expert_bias" in name)
        holders = take_inventory(modules, bridge.weight_mapping(hf)).holders
        mine = [held for shards in holders.values() for held in shards if held.ranks[0] == rank.rank]
        sizes = [(math.prod(held.shape) * held.dtype.itemsize, held.everywhere) for held in mine]
        exported = sum(size for size, _ in sizes), sum(size for size, everywhere in sizes if not everywhere)
        counts.append((parallel_state.get_pipeline_model_parallel_rank(), *numbers, *exported))
    return counts


LAYOUTS = [{TP: 2, PP: 2}, {CP: 2, PP: 2}]
OF_EXPERTS = [{TP: 2, EP: 4, ETP: 1}, {PP: 2, EP: 2}, {TP: 2, PP: 2}]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("package", "model", "layouts"),
    [
        ("slime_plugin_glm4", "glm4-tiny", LAYOUTS),
        ("slime_plugin_glm4", "glm4-moe-tiny", [*OF_EXPERTS, {PP: 2, "mtp": True}]),
        ("slime_plugin_deepseek_v3", "deepseek-v3-tiny", [*OF_EXPERTS, {TP: 2, PP: 2, "mtp": True}]),
    ],
)
def test_ranks_hold_what_megatron_builds(package: str, model: str, layouts: list[dict[str, Any]]) -> None:
    keywords, weights = read(config_of(package, model))
    found = run_ranks(built, 4, model, layouts, timeout_s=200)
    for number, layout in enumerate(layouts):
        grid = read_grid(4, layout if layout.get(EP, 1) == 1 else {ETP: 1, **layout})
        drafts = "mtp" in layout
        in_force = ["train.mtp_loss_scale"] if drafts else []
        held = held_by_stage(weights, grid, {**keywords, **layout}, in_force=in_force, copies_embeddings=drafts)
        everything, unshared = (
            owned_bytes(weights, grid, {**keywords, **layout}, lambda _: 4, replicas=replicas, copies_embeddings=drafts)
            for replicas in (True, False)
        )
        for rank, of_rank in enumerate(found):
            stage, *numbers = of_rank[number]
            expected = [held[stage].dense, held[stage].experts, held[stage].frozen, everything[rank], unshared[rank]]
            assert numbers == expected, layout
