"""What is wrong with a run, as far as LoRA is concerned. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from slime import plugins
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import Init, SlimeConfig
from slime.errors import SlimeError
from slime.models.bridge import traits_of
from slime.topology.topology import read_topology
from slime_plugin_lora.engines import beside_problems
from slime_plugin_lora.options import LoraConfig, LoraTrain, Published


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
    if lora.publish is Published.adapters:
        try:
            topology = read_topology(cfg)
            yield from beside_problems(topology, bridge.weight_mapping(hf), lora.targets)
        except SlimeError:  # core says so itself
            return
