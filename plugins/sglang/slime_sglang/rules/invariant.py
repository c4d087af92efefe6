"""Where `model.batch_invariant` does not hold: models, layouts and fields that compute otherwise on one side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime.errors import SlimeError
from slime.topology.adapters import adapters_of
from slime.topology.engines import invariant_fields
from slime.topology.quantization import choices
from slime.topology.topology import Topology
from slime_sglang.rules.asked import Asked

KEY = "model.batch_invariant"
OFF = "Set it to false."
_MODELS = {
    "multi_latent_attention": "latent attention, which engines compute in another form than trainers",
    "dsa_indexer_topk": "sparse attention, whose keys each side chooses by its own scores",
    "moe_router_num_groups": "experts that are chosen by groups",
    "moe_shared_expert_gate": "shared experts with a gate",
    "window_size": "attention to a window",
    "layernorm_zero_centered_gamma": "norms around 1",
}
"""By Megatron-core's keyword, what a model has by it that the shared operators are not for."""
_ALONE = {"normalization": "RMSNorm", "activation_func": "silu", "moe_router_dtype": "fp32"}
"""The only ones that the shared operators know."""
_CUTS = ("tensor_model_parallel_size", "context_parallel_size", "expert_tensor_parallel_size")
_ENGINE = {"kv_cache_dtype": "auto", "quantization": None, "speculative_algorithm": None, "ep_num_redundant_experts": 0}
"""SGLang's fields that stay at their defaults."""


def invariant_problems(topology: Topology, model: Mapping[str, Any]) -> Iterator[SlimeError]:
    """
    Args:
        model: keywords of Megatron's TransformerConfig.
    """
    cfg = topology.config
    if not cfg.model.batch_invariant:
        return
    for name, what in _MODELS.items():
        if model.get(name):
            yield SlimeError(f"does not hold for {what}", where=KEY, todo=OFF)
    for name, known in _ALONE.items():
        if (has := model.get(name, known)) != known:
            yield SlimeError(f"does not hold for {has}, but for {known} alone", where=KEY, todo=OFF)
    yield from _of_the_run(topology)
    for group in topology.groups:
        asked = Asked(topology, group, model)
        if group.devices_per_engine > 1:
            what = f"makes {group.devices_per_engine} ranks, which sum in parts; {KEY} is for one"
            todo = "Set devices_per_engine to 1, without tp_size."
            yield SlimeError(what, where=f"rollout.engines.{group.name}.devices_per_engine", todo=todo)
        for key, value in {**invariant_fields(cfg.cluster, cfg.train.megatron), **_ENGINE}.items():
            if group.sglang.get(key, value) != value:
                yield asked.problem(key, f"is {group.sglang[key]}, and {KEY} needs {value}", "Remove it.")


def _of_the_run(topology: Topology) -> Iterator[SlimeError]:
    cfg = topology.config
    for key in _CUTS:
        size = cfg.train.megatron.get(key) or 1
        if size > 1:
            what = f"is {size}, and parts of a sum have another order; {KEY} is for 1"
            yield SlimeError(what, where=f"train.megatron.{key}", todo="Set it to 1, or divide by layers.")
    for key in choices(cfg.rollout):
        yield SlimeError(f"has engines round weights, which {KEY} is not for", where=key, todo="Remove it.")
    if cfg.rollout.addresses:
        what = "is set, but nobody knows the operators of servers that somebody else started"
        yield SlimeError(what, where=KEY, todo=OFF)
    if adapters_of(cfg.train):
        yield SlimeError("does not hold for adapters, whose products engines round elsewhere", where=KEY, todo=OFF)
    if cfg.model.fp32_lm_head:
        what = f"is set, and {KEY} has both sides round logits alike"
        yield SlimeError(what, where="model.fp32_lm_head", todo="Set it to false.")
    sampling = cfg.rollout.sampling
    if sampling.top_p < 1 or sampling.top_k > 0:
        what = f"leaves tokens out, whose mass each side sums in its own order; {KEY} is for all tokens"
        where = f"rollout.sampling.{'top_p' if sampling.top_p < 1 else 'top_k'}"
        yield SlimeError(what, where=where, todo="Remove it.")
