"""Rules for an engine group's fields, one a function: what SGLang 0.5.16 refuses, or changes without a word.

SGLang cannot be asked itself: `ServerArgs` takes seconds to import and asks the GPU. The rules were read in its
`server_args.py`, `arg_groups` and `layers/moe`; a test holds them against the real `ServerArgs`, where that needs no
GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from slime.config.gpus import gpu_of
from slime.config.schema import Role
from slime.errors import SlimeError
from slime.layout import divisors, listed
from slime.models.blocks import BuildingBlock
from slime.sizes.model import frozen_sizes
from slime.sizes.parameters import blocks_by_layer
from slime.topology.engines import FP32_HEAD, EngineGroup
from slime.topology.server_fields import (
    DEEPEP_RANKS,
    DISPATCH_TOKENS,
    dispatch_tokens,
    drafts_with_own_layer,
    server_fields,
    transfer_backend,
)
from slime.topology.topology import Topology
from slime_sglang.rules.asked import Asked
from slime_sglang.rules.invariant import invariant_problems
from slime_sglang.rules.serving import serving_problems

MOST_DISPATCH_TOKENS = 1024


def sglang_problems(
    topology: Topology, model: Mapping[str, Any], blocks: Collection[BuildingBlock] = ()
) -> Collection[SlimeError]:
    """The rules that the engine groups break, one for each key: groups share keys, and one key may break several.

    Args:
        model: keywords of Megatron's TransformerConfig.
        blocks: of the model.
    """
    found: dict[str, SlimeError] = {}
    for problem in _broken(topology, model, blocks):
        found.setdefault(problem.where, problem)
    return found.values()


def _broken(topology: Topology, model: Mapping[str, Any], blocks: Collection[BuildingBlock]) -> Iterator[SlimeError]:
    for group in topology.groups:
        asked = Asked(topology, group, model, blocks)
        sizes = [*_pipeline(asked)] or [*_data_parallel(asked)]
        yield from sizes
        if sizes:  # the other rules divide by them
            continue
        yield from _expert_places(asked)
        for rule in (_heads, _dense, _experts, _weights, _head, _dispatch, _cache, serving_problems, _transfer):
            yield from rule(asked)
    yield from invariant_problems(topology, model)
    yield from _pairs([group for group in topology.groups if group.role is not Role.regular])
    yield from _frozen(topology)


def _frozen(topology: Topology) -> Iterator[SlimeError]:
    """Rules for groups with models of their own, to which nothing is published. Where the model's sizes are not known,
    only the fields themselves are looked at."""
    known = frozen_sizes(topology) if topology.frozen else {}
    for group in topology.frozen:
        other = known.get(group.name)
        blocks = blocks_by_layer(other.weights) if other else {}
        own = {block for of_layer in blocks.values() for block in of_layer}
        asked = Asked(topology, group, other.model if other else {}, own)
        sizes = [*_data_parallel(asked)]
        yield from sizes
        if sizes:
            continue
        rules = (_heads, _dense, _experts, _dispatch, _cache, serving_problems) if other else (serving_problems,)
        for rule in rules:
            yield from rule(asked)
        yield from _own_drafts(asked, has_layer=not other or any(weight.drafts for weight in other.weights))


def _own_drafts(asked: Asked, *, has_layer: bool) -> Iterator[SlimeError]:
    key = "speculative_algorithm"
    if asked.get(key) is not None and "is_embedding" in server_fields(asked.topology.config, asked.group, 0):
        yield asked.problem(key, f"is {asked.get(key)}, but a reward model generates nothing", "Set it to null.")
    elif drafts_with_own_layer(asked.group.sglang) and not has_layer:
        what = f"is {asked.get(key)}, but this model has no layer that drafts"
        yield asked.problem(key, what, "Set it to null.")


def _pipeline(asked: Asked) -> Iterator[SlimeError]:
    if asked.get("pp_size", 1) != 1:
        what = f"is {asked.get('pp_size')}, but weights are published to tensor-parallel ranks only"
        yield asked.problem("pp_size", what, "Remove it, and raise tp_size.")


def _data_parallel(asked: Asked) -> Iterator[SlimeError]:
    dp, attention = asked.get("dp_size", 1), asked.get("enable_dp_attention")
    if dp > 1 and not attention:
        what = f"is {dp} without enable_dp_attention: SGLang would start as many engines, which publishing cannot reach"
        yield asked.problem("dp_size", what, "Set enable_dp_attention=true, or give the group more devices instead.")
    elif attention and dp == 1:
        what = "needs dp_size above 1: SGLang switches it off without a word"
        yield asked.problem("enable_dp_attention", what, f"Set dp_size to a divisor of {asked.group.tp}, or remove it.")
    elif asked.group.tp % dp:
        what = f"is {dp}, which does not divide tp_size {asked.group.tp}"
        yield asked.problem("dp_size", what, f"Choose one of {listed(divisors(asked.group.tp)[1:])}.")
    elif asked.get("enable_dp_lm_head") and not attention:
        what = "needs enable_dp_attention: SGLang switches it off without a word"
        yield asked.problem("enable_dp_lm_head", what, "Set it to false.")


def _head(asked: Asked) -> Iterator[SlimeError]:
    """Trainers compute logits as engines do."""
    wanted = asked.topology.config.model.fp32_lm_head
    if asked.get(FP32_HEAD, wanted) != wanted:
        what = "is of engines alone, which would differ more from trainers"
        yield asked.problem(FP32_HEAD, what, f"Set model.fp32_lm_head={str(not wanted).lower()}, and remove this.")


def _heads(asked: Asked) -> Iterator[SlimeError]:
    heads = asked.model.get("num_attention_heads")
    if heads is None or heads % asked.group.attention_tp == 0:
        return
    what = f"{heads} attention heads cannot be divided by {asked.group.attention_tp} ranks"
    if asked.get("enable_dp_attention"):
        fits = [dp for dp in divisors(asked.group.tp)[1:] if heads % (asked.group.tp // dp) == 0]
        yield asked.problem("dp_size", f"is {asked.get('dp_size')}: {what}", f"Choose one of {listed(fits)}.")
    else:
        yield asked.problem("tp_size", what, "Change it, or use enable_dp_attention with a fitting dp_size.")


def _dense(asked: Asked) -> Iterator[SlimeError]:
    size = asked.get("moe_dense_tp_size")
    if size not in (None, 1, asked.group.tp):
        yield asked.problem("moe_dense_tp_size", f"is {size}", "Set it to 1.")


def _experts(asked: Asked) -> Iterator[SlimeError]:
    experts, redundant = asked.model.get("num_moe_experts"), asked.get("ep_num_redundant_experts", 0)
    ep, backend = asked.get("ep_size"), asked.get("moe_a2a_backend", "none")
    if not experts:
        for key in ("ep_size", "ep_num_redundant_experts", "moe_dense_tp_size", "moe_a2a_backend"):
            if asked.get(key) not in (None, 0, 1, "none"):
                yield asked.problem(key, f"is {asked.get(key)}, but the model has no experts", "Remove it.")
        return
    if asked.group.tp > experts:
        what = f"makes {asked.group.tp} ranks, more than the {experts} experts that SGLang shares out over them"
        yield asked.problem("tp_size", what, f"Use at most {experts} devices an engine.")
    if asked.group.spreads_experts and ep not in (None, asked.group.tp):
        what = f"is {ep}, but moe_a2a_backend={backend} makes it tp_size={asked.group.tp}"
        yield asked.problem("ep_size", what, f"Set it to {asked.group.tp}, or remove it.")
    elif asked.group.tp % asked.group.ep:
        what = f"is {ep}, which does not divide tp_size {asked.group.tp}"
        yield asked.problem("ep_size", what, f"Choose one of {listed(divisors(asked.group.tp))}.")
    elif (experts + redundant) % asked.group.ep:
        fits = next(count for count in range(asked.group.ep) if (experts + count) % asked.group.ep == 0)
        total = experts + redundant
        what = f"{experts} + {redundant} redundant experts make {total}, which {asked.group.ep} ranks do not divide"
        todo = f"Set it to {fits} ({experts + fits} experts) or {fits + asked.group.ep}."
        yield asked.problem("ep_num_redundant_experts", what, todo)


def _expert_places(asked: Asked) -> Iterator[SlimeError]:
    if asked.get("enable_eplb"):
        what = "moves experts to other ranks while the engine serves; publishing writes them where they were"
        yield asked.problem("enable_eplb", what, "Remove it; ep_num_redundant_experts alone is served.")
    if asked.get("init_expert_location", "trivial") != "trivial" and not asked.group.spreads_experts:
        what = "does not reach the router of tokens, which SGLang tells of it with moe_a2a_backend alone"
        yield asked.problem("init_expert_location", what, "Remove it, or set moe_a2a_backend=deepep.")
    if asked.get("ep_dispatch_algorithm") == "fake":
        yield asked.problem("ep_dispatch_algorithm", "is fake, which draws experts at random", "Remove it.")


def _weights(asked: Asked) -> Iterator[SlimeError]:
    """Rules of the format in which engines hold weights."""
    try:
        form = asked.topology.weight_format
    except SlimeError as problem:
        yield problem
        return
    if form:
        yield from form.problems(asked.group, asked.model)


def _dispatch(asked: Asked) -> Iterator[SlimeError]:
    """Rules of the all-to-all that SGLang exchanges tokens with."""
    backend, mode = asked.get("moe_a2a_backend", "none"), asked.get("deepep_mode", "auto")
    if backend != "none" and not asked.model.get("num_moe_experts"):  # `_experts` says it
        return
    if backend not in ("none", "deepep"):
        todo = f"Set it to {'deepep' if asked.quantizes else 'none'}."
        yield asked.problem("moe_a2a_backend", f"is {backend}, which was never tried with slime", todo)
        return
    if backend != "deepep":
        if "deepep_mode" in asked.group.sglang:
            what = "does nothing without moe_a2a_backend=deepep"
            if "moe_a2a_backend" in asked.group.sglang:  # which is the one that was changed, of a recipe that has both
                todo = "Set it to deepep, or remove deepep_mode."
                yield asked.problem("moe_a2a_backend", f"is {backend}: deepep_mode {what}", todo)
            else:
                yield asked.problem("deepep_mode", what, "Remove it.")
        return
    if not asked.cluster.on_gpus:
        yield asked.problem("moe_a2a_backend", "is deepep, which needs GPUs", "Remove it.")
        return
    gpu = gpu_of(asked.cluster)
    if gpu and not (gpu.nvlink_gb_s and gpu.capability >= 9):
        what = "is deepep, which needs NVLink and compute capability 9.0"
        yield asked.problem("moe_a2a_backend", what, "Remove it.")
        return
    if mode == "normal":
        yield asked.problem("deepep_mode", "is normal: SGLang drops every CUDA graph without a word", "Use auto.")
    if mode == "low_latency" and asked.group.role is not Role.decode:
        what = f"is low_latency, which cannot take the prefill of {asked.group.role.name} engines"
        yield asked.problem("deepep_mode", what, "Use auto.")
    if mode != "low_latency" and asked.group.tp not in DEEPEP_RANKS and not asked.get("deepep_config"):
        what = f"deepep has no settings for {asked.group.tp} ranks"
        todo = f"Use {listed(DEEPEP_RANKS)} devices an engine, or give deepep_config."
        yield SlimeError(what, where=f"rollout.engines.{asked.group.name}.devices_per_engine", todo=todo)
    if not asked.quantizes and (mode != "low_latency" or asked.get("moe_runner_backend") != "deep_gemm"):
        what = "is deepep, which takes experts in bf16 only in mode low_latency with moe_runner_backend=deep_gemm"
        yield asked.problem("moe_a2a_backend", what, "Set rollout.fp8=block, or remove it.")
    tokens = dispatch_tokens(asked.group)
    given = asked.group.environment.get(DISPATCH_TOKENS, str(tokens))
    if not given.isdecimal() or int(given) < tokens:
        what = f"is {given}, but a decode batch may bring {tokens} tokens a rank, which SGLang compares with nothing"
        yield SlimeError(what, where=f"{DISPATCH_TOKENS} in the environment", todo=f"Remove it, or set {tokens}.")
    if tokens > MOST_DISPATCH_TOKENS:
        what = f"a decode batch may bring {tokens} tokens a rank, deepep takes {MOST_DISPATCH_TOKENS}"
        yield asked.problem("max_running_requests", what, "Lower it, or cuda_graph_max_bs_decode.")


def _cache(asked: Asked) -> Iterator[SlimeError]:
    """Rules of the kernels of the model's attention."""
    if asked.page > 1 and asked.get("page_size", asked.page) != asked.page:
        what = f"is {asked.get('page_size')}, but this model's attention has pages of {asked.page}"
        yield asked.problem("page_size", what, "Remove it.")
    dtype = asked.get("kv_cache_dtype", "auto")
    taken = next((block.cache_dtypes for block in asked.blocks if block.cache_dtypes), (dtype,))
    if dtype not in taken:
        what = f"is {dtype}, which this model's attention does not take"
        yield asked.problem("kv_cache_dtype", what, f"Use one of {', '.join(taken)}.")


def _transfer(asked: Asked) -> Iterator[SlimeError]:
    """How prefill engines hand KV caches to decode engines."""
    if asked.group.role is Role.regular:
        return
    backend, key = transfer_backend(asked.group), "disaggregation_transfer_backend"
    if backend not in ("mooncake", "mooncake_tcp"):
        reason = {
            "fake": "moves nothing",
            "nixl": "does not let go of memory that engines give back",
        }.get(backend, "was never tried")
        ways = "mooncake (RDMA) or mooncake_tcp" if asked.cluster.ib_devices else "mooncake_tcp"
        yield asked.problem(key, f"is {backend}, which {reason}", f"Use {ways}.")
    elif backend == "mooncake" and not asked.cluster.ib_devices:
        tcp = f"{asked.group.home_of(key)}=mooncake_tcp"
        todo = f"Name them, cluster.ib_devices=[mlx5_0,...], or set {tcp}."
        yield SlimeError(f"is empty, but {key}=mooncake needs RDMA devices", where="cluster.ib_devices", todo=todo)


MUST_AGREE = (
    "page_size",
    "kv_cache_dtype",
    "dtype",
    "disaggregation_transfer_backend",
    "enable_deterministic_inference",
    "speculative_algorithm",
    "speculative_num_steps",
    "speculative_eagle_topk",
    "speculative_num_draft_tokens",
)
"""Fields that prefill and decode engines need alike: caches and hidden states pass between them, and both draw
tokens."""


def _pairs(groups: Sequence[EngineGroup]) -> Iterator[SlimeError]:
    for group in groups[1:]:
        for key in MUST_AGREE:
            mine, first = group.sglang.get(key), groups[0].sglang.get(key)
            if mine != first:
                what = f"is {mine} here and {first} in group {groups[0].name}, but both sides of a pair need one value"
                todo = f"Set it to {first}." if first is not None else "Remove it."
                yield SlimeError(what, where=f"rollout.engines.{group.name}.sglang.{key}", todo=todo)
