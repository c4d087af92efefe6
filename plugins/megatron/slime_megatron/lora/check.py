"""What is wrong with a run, as far as LoRA is concerned. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from slime import plugins
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import Init, SlimeConfig
from slime.errors import SlimeError
from slime.models.bridge import traits_of
from slime.models.mapping import WeightMapping
from slime.topology.topology import Topology, read_topology
from slime_megatron.lora.engines import beside_problems
from slime_megatron.lora.options import LoraConfig, LoraTrain, Published
from slime_megatron.lora.targets import targets_of


def problems(cfg: SlimeConfig) -> Iterator[str]:
    """A sentence each."""
    if not isinstance(cfg.train, LoraTrain):
        return
    lora = cfg.train.lora
    if lora.rank is None:
        if lora != LoraConfig():
            yield "the other keys of train.lora do nothing without train.lora.rank"
        return
    if cfg.model.init is Init.random and cfg.train.checkpoint.interval is not None:
        yield "model.init=random leaves train.lora.rank no weights to name, as checkpoints hold the adapters alone"
    if cfg.train.megatron.get("moe_router_bias_update_rate"):
        yield "train.megatron.moe_router_bias_update_rate moves routers, which train.lora.rank leaves as they are"
    if cfg.train.megatron.get("moe_shared_expert_overlap"):
        yield "train.megatron.moe_shared_expert_overlap leaves no place for the adapters of shared experts"
    yield from _of_model(cfg, lora)


def _of_model(cfg: SlimeConfig, lora: LoraConfig) -> Iterator[str]:
    try:
        hf = read_hf_config(config_folder(cfg.model), cfg.model.num_layers)
        bridge = plugins.load().models.create(cfg.model.family)
        traits = traits_of(bridge, hf)
    except SlimeError:  # core says so itself
        return
    for trait in traits:
        if trait.coefficient(cfg.train):
            yield f"{trait.learns_by} lets {trait.name} learn, which train.lora.rank leaves as it is"
    base = bridge.weight_mapping(hf)
    try:
        if lora.expert_rank:
            yield from _of_experts(read_topology(cfg), lora, base)
        if lora.publish is Published.adapters:
            yield from beside_problems(read_topology(cfg), base, lora)
    except SlimeError:  # core says so itself
        return


def _of_experts(topology: Topology, lora: LoraConfig, base: WeightMapping) -> Iterator[str]:
    """Why routed experts of this run cannot have adapters."""
    key, grid = "train.lora.expert_rank", topology.grid
    rules = [rule for rule in base.rules if rule.per_expert]
    if not rules:
        yield f"{key} does nothing: the model has no routed experts"
    elif not any(targets_of(rule, lora) for rule in rules):
        yield f"{key} does nothing: train.lora.targets names no layer of experts"
    for rule in rules:
        chosen, parts = (
            {target.name for target in targets_of(rule, each)} for each in (lora, replace(lora, targets=[]))
        )
        if chosen and chosen != parts:
            yield f"{key} takes {' and '.join(sorted(parts))} together, as transformers has them in one parameter"
    if grid.etp > 1:
        yield (
            f"{key} adapts whole experts, and {grid.etp} ranks share each: set expert_model_parallel_size in "
            f"train.megatron to {grid.tp} or more, and leave out expert_tensor_parallel_size"
        )
    if topology.config.train.megatron.get("moe_token_dispatcher_type") == "flex":
        what = f"{key} was not built for train.megatron.moe_token_dispatcher_type=flex"
        yield f"{what}: leave out that and moe_flex_dispatcher_backend"
