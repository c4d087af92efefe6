"""Engines that get adapters as they are (`train.lora.publish=adapters`): what they are told, and which cannot. No
torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

from slime import plugins
from slime.models.mapping import WeightMapping
from slime.topology.topology import Topology
from slime.topology.transport_protocol import StoringTransport
from slime.weights.transports import transport_of
from slime_megatron.lora.options import LoraConfig
from slime_megatron.lora.targets import layers_of_experts, layers_with_adapters

KEY = "train.lora.publish=adapters"
_NEEDS = {
    "q_proj": ["v_proj"],
    "k_proj": ["q_proj", "v_proj"],
    "v_proj": ["q_proj"],
    "up_proj": ["gate_proj"],
    "q_a_proj": ["kv_a_proj_with_mqa"],
    "kv_a_proj_with_mqa": ["q_a_proj"],
}
"""SGLang fuses layers, and takes the adapter of one with those of others. Where the model has them."""
_KNOWN = {*_NEEDS, "qkv_proj", "o_proj", "gate_proj", "gate_up_proj", "down_proj", "q_b_proj"}
"""What engines were seen to take. Of the others, `kv_b_proj` of latent attention is absorbed into its neighbours."""
_REFUSED: dict[str, tuple[Any, ...]] = {
    "speculative_algorithm": (None,),
    "enable_dp_attention": (None, False),
    "pp_size": (None, 1),
    "ep_size": (None, 1),
    "moe_a2a_backend": (None, "none"),
    "quantization": (None,),
}
"""Fields of engines, with the values under which adapters were seen to work."""


def engine_fields(rank: int, layers: Collection[str], *, on_gpus: bool) -> dict[str, Any]:
    """Of `ServerArgs`: one slot, for the adapters of the version."""
    fields = {
        "enable_lora": True,
        "max_lora_rank": rank,
        "lora_target_modules": sorted(layers),
        "max_loras_per_batch": 1,
    }
    return fields if on_gpus else {**fields, "lora_backend": "torch_native"}


def beside_problems(topology: Topology, base: WeightMapping, options: LoraConfig) -> Iterator[str]:
    """Why engines of this run cannot get adapters as they are, a sentence each."""
    if options.expert_rank:
        yield f"{KEY} was not seen to work with adapters of routed experts: leave out train.lora.expert_rank"
    yield from _of_targets(base, replace(options, expert_rank=None))
    if topology.takes_turns:
        yield f"{KEY} needs engines that keep their weights, and those that take turns on devices give them up"
    if topology.works_in_pairs:
        yield f"{KEY} was not seen to work with prefill and decode engines"
    if topology.weight_format:
        yield f"{KEY} was not seen to work with engines that quantise weights"
    if topology.transport in plugins.load().transports and isinstance(
        transport_of(topology.transport), StoringTransport
    ):
        yield f"{KEY} publishes versions that are not whole, and weights.transport={topology.transport} stores each"
    if topology.weights.num_sources > 1:
        yield f"{KEY} publishes from one trainer rank, and weights.num_sources is {topology.weights.num_sources}"
    for group in topology.groups:
        for key, value in group.sglang.items():
            if key in _REFUSED and value not in _REFUSED[key]:
                yield f"{KEY} was not seen to work with engines of {group.home_of(key)}={value}"


def _of_targets(base: WeightMapping, options: LoraConfig) -> Iterator[str]:
    """SGLang tells layers by the last part of their names, and experts have adapters as soon as a layer of that name
    has."""
    layers, known = (layers_with_adapters(base, each) for each in (options, replace(options, targets=[])))
    if experts := sorted(layers & layers_of_experts(base)):
        yield (
            f"{KEY} gives routed experts adapters too where '{experts[0]}' has one; "
            f"name others in train.lora.targets, such as {_list(known & _KNOWN - layers_of_experts(base))}"
        )
    elif unknown := sorted(layers - _KNOWN):
        others = _list(known & _KNOWN - layers_of_experts(base))
        yield f"{KEY} was not seen to work with '{unknown[0]}'; name others in train.lora.targets, such as {others}"
    for name in sorted(layers):
        if missing := [other for other in _NEEDS.get(name, ()) if other in known and other not in layers]:
            yield f"{KEY} takes '{name}' together with '{missing[0]}', which train.lora.targets lacks"


def _list(names: Collection[str]) -> str:
    return f"[{','.join(sorted(names))}]"
