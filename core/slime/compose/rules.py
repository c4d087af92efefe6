"""What a parallel layout must respect so that Megatron-core and slime compute the right thing.

Each rule yields one error a violation. The reasons are Megatron-core 0.16.1's: without sequence parallelism its
gradients of replicated norms are wrong under TP; with ETP < TP and EP < TP expert gradients are not summed over TP; the
`allgather` dispatcher needs equal token counts; the interleaved schedule deadlocks unless its sends overlap.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from slime.algo.stages import run_stages
from slime.compose.derive import required_megatron
from slime.compose.engine_rules import engine_check_problems, renewal_problems
from slime.config.gpus import gpu_of
from slime.config.keys import value_of
from slime.config.megatron_fields import ACCEPTED, OF_THE_MODEL
from slime.config.schema import ClusterConfig, RolloutConfig
from slime.engines.limits import longest_of
from slime.errors import SlimeError
from slime.layout import Grid, divisors, listed, read_grid, split_layers, trains_experts
from slime.models.bridge import HfConfig, ModelBridge, PlanBridge
from slime.models.mapping import WeightMapping
from slime.topology.server_fields import DEEPEP_RANKS
from slime.topology.topology import Topology

MEGATRON = "train.megatron"


def layout_problems(
    topology: Topology, architecture: Mapping[str, Any], mapping: WeightMapping
) -> Iterator[SlimeError]:
    """Rules about ranks and layers. `architecture`: keywords of Megatron's TransformerConfig that the bridge gives."""
    cfg, grid = topology.config, topology.grid
    model = {"bf16": cfg.cluster.on_gpus, **architecture, **cfg.train.megatron}
    for key, value in required_megatron(cfg.train.megatron).items():
        if (given := cfg.train.megatron[key]) != value:
            todo = f"Remove it, or set {MEGATRON}.{key}={str(value).lower()}."
            yield SlimeError(f"is {given}, but this layout needs {value}", where=f"{MEGATRON}.{key}", todo=todo)
    yield from _needed(topology, model)
    yield from _recomputed(model)
    yield from _heads(model, grid)
    yield from _experts(model, grid)
    yield from _flex(cfg.cluster, model, grid)
    yield from _stages(model, grid)
    drafts = any(rule.drafts for rule in mapping.rules)
    yield from renewal_problems(topology, drafts=drafts)
    yield from _prediction(cfg.train.mtp_loss_scale, model, drafts=drafts)
    yield from engine_check_problems(topology, model, mapping.blocks)


def family_problems(bridge: ModelBridge, hf: HfConfig, megatron: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Rules of the model's own family. Asked of layouts that break none of `layout_problems`."""
    if isinstance(bridge, PlanBridge):
        where, todo = f"model family {bridge.family}", "Choose other sizes."
        for sentence in bridge.plan_problems(hf, megatron):
            yield SlimeError(sentence.rstrip("."), where=where, todo=todo)


def _needed(topology: Topology, model: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Fields that ask for something without what they need for it: of several conditions, the first is named."""

    def value_in(key: str) -> Any:
        return value_of(topology.config, key) if "." in key else model.get(key)

    for section, fields in ACCEPTED.items():
        for key, value in value_of(topology.config, section).items():
            field = fields.get(key)
            needs = field.needs.split() if field and field.asks(value) else ()
            if missing := next((need for need in needs if not _holds(need, value_in)), None):
                full = missing if "." in missing else f"{MEGATRON}.{missing}"
                words = OF_THE_MODEL.get(missing, full.replace("!=", " other than ").replace(">", " above "))
                todo = "Remove it." if missing in OF_THE_MODEL else "Set that too, or remove this."
                yield SlimeError(f"does nothing without {words}", where=f"{section}.{key}", todo=todo)


def _holds(need: str, value_in: Callable[[str], Any]) -> bool:
    key, sign, wanted = re.split("(!=|=|>|$)", need, maxsplit=1)
    value = value_in(key)
    if sign == ">":
        return (value or 0) > int(wanted)
    written = str(getattr(value, "name", value)).lower()
    return {"=": written == wanted, "!=": written != wanted}.get(sign, bool(value))


def _recomputed(model: Mapping[str, Any]) -> Iterator[SlimeError]:
    has = {
        "mla_up_proj": model.get("multi_latent_attention"),
        "moe": model.get("num_moe_experts"),
        "shared_experts": model.get("moe_shared_expert_intermediate_size"),
    }
    for part in model.get("recompute_modules") or ():
        if not has.get(part, True):
            where = f"{MEGATRON}.recompute_modules"
            yield SlimeError(f"names {part}, which this model does not have", where=where, todo="Leave it out.")


def _heads(model: Mapping[str, Any], grid: Grid) -> Iterator[SlimeError]:
    """Tensor parallelism cuts between heads, and queries stay with the key/value head that serves them."""
    shares_keys = not model.get("multi_latent_attention") and "num_query_groups" in model
    heads = model.get("num_query_groups" if shares_keys else "num_attention_heads")
    if heads is not None and heads % grid.tp:
        kind = "key/value" if shares_keys else "attention"
        what = f"{heads} {kind} heads cannot be divided by {grid.tp}"
        todo = f"Choose a divisor of {heads}."
        yield SlimeError(what, where=f"{MEGATRON}.tensor_model_parallel_size", todo=todo)


def _experts(model: Mapping[str, Any], grid: Grid) -> Iterator[SlimeError]:
    experts = model.get("num_moe_experts")
    where = f"{MEGATRON}.expert_model_parallel_size"
    if not experts:
        if grid.ep > 1:
            yield SlimeError(f"is {grid.ep}, but the model has no experts", where=where, todo="Set it to 1.")
        return
    if experts % grid.ep:
        what = f"{experts} experts cannot be divided by {grid.ep}"
        yield SlimeError(what, where=where, todo=f"Choose a divisor of {experts}.")
    if not trains_experts(grid.tp, grid.ep, grid.etp):
        what = f"is {grid.etp}, which needs an expert parallel size of at least {grid.tp}, got {grid.ep}"
        todo = f"Set it to {grid.tp}, or {where} to {grid.tp} or more."
        yield SlimeError(what, where=f"{MEGATRON}.expert_tensor_parallel_size", todo=todo)


def _flex(cluster: ClusterConfig, model: Mapping[str, Any], grid: Grid) -> Iterator[SlimeError]:
    """Whether DeepEP can exchange tokens between that number of ranks."""
    if model.get("moe_token_dispatcher_type") != "flex":
        return
    where, ranks = f"{MEGATRON}.moe_token_dispatcher_type", grid.etp * grid.ep
    gpu = gpu_of(cluster)
    if not cluster.on_gpus or (gpu and not gpu.nvlink_gb_s):
        yield SlimeError("is flex, whose DeepEP needs GPUs with NVLink", where=where, todo="Remove it.")
    elif ranks not in DEEPEP_RANKS:
        near = min(DEEPEP_RANKS, key=lambda size: abs(size - ranks))
        what = f"is flex, but DeepEP has no settings for {ranks} ranks that share experts"
        todo = f"Use alltoall, or expert parallel x expert tensor parallel of {near}."
        yield SlimeError(what, where=where, todo=todo)


def _stages(model: Mapping[str, Any], grid: Grid) -> Iterator[SlimeError]:
    if grid.vpp > 1 and grid.pp == 1:
        where, todo = f"{MEGATRON}.virtual_pipeline_model_parallel_size", "Remove it."
        yield SlimeError("needs more than one pipeline stage", where=where, todo=todo)
    elif "num_layers" in model:
        try:
            split_layers(model["num_layers"], grid, model)
        except SlimeError as problem:
            yield problem


def _prediction(loss_scale: float | None, model: Mapping[str, Any], *, drafts: bool) -> Iterator[SlimeError]:
    """Whether a multi-token prediction layer that is to learn is there, on the last stage."""
    where, todo, learns = "train.mtp_loss_scale", "Leave it empty.", loss_scale is not None
    if learns and not drafts:
        yield SlimeError("needs a multi-token prediction layer, which this model does not have", where=where, todo=todo)
    layout = model.get("pipeline_model_parallel_layout")
    *others, last = layout.split("|") if isinstance(layout, str) else ["m" * learns]
    if ("m" in last) != learns or "m" in "".join(others):
        what = "must have the prediction layer, 'm', in its last part if train.mtp_loss_scale is set, else nowhere"
        yield SlimeError(what, where=f"{MEGATRON}.pipeline_model_parallel_layout", todo="Write it like 'Ett|ttmL'.")


def batch_problems(topology: Topology) -> Iterator[SlimeError]:
    """Whether every sampled sequence fits a micro-batch and every rank gets samples."""
    cfg, grid = topology.config, topology.grid
    if not run_stages(cfg).reinforces:  # demonstrations are checked as they are read
        return
    longest = longest_of(cfg.rollout, cfg.rollout.sampling)
    padded = grid.padded(longest)
    cap = cfg.train.max_tokens_per_micro_batch
    if padded > cap:
        pad = f", {padded} when padded to a multiple of {grid.packing_align}" if padded > longest else ""
        most = cap // grid.packing_align * grid.packing_align
        shorter = f", or rollout.sampling.max_sequence_tokens to {most} or less"
        todo = f"Set it to {padded} or more{shorter if most > cfg.rollout.max_prompt_tokens else ''}."
        what = f"is {cap}, but a sequence may have {longest} tokens{pad}"
        yield SlimeError(what, where="train.max_tokens_per_micro_batch", todo=todo)
    yield from _shares(cfg.rollout, cfg.train.steps_per_rollout, grid)


def host_problems(topology: Topology) -> Iterator[SlimeError]:
    """Whether a run with `cluster.min_hosts` goes on without one of its hosts, whichever that is."""
    cluster, ranks = topology.cluster, Counter(place.node for place in topology.trainer_places)
    if cluster.min_hosts is None:
        return
    needed = {place.node for places in topology.engine_places for place in places}
    without = [cluster.num_trainers - count for node, count in ranks.items() if node not in needed]
    if without and any(_divides(count, topology) for count in without):
        return
    what = "each host of trainer ranks has an engine, too, without which a run ends"
    if without:
        left = f"{max(without)} of {cluster.num_trainers} trainer ranks that are left"
        what = f"without a host, the {left} make up no whole replicas of the model under train.megatron"
    yield SlimeError(f"does nothing: {what}", where="cluster.min_hosts", todo="Remove it, or place them otherwise.")


def _divides(num_trainers: int, topology: Topology) -> bool:
    try:
        return bool(read_grid(num_trainers, topology.config.train.megatron))
    except SlimeError:
        return False


def _shares(rollout: RolloutConfig, steps: int, grid: Grid) -> Iterator[SlimeError]:
    a_prompt = rollout.samples_per_prompt
    samples, needed = rollout.prompts_per_step * a_prompt, grid.dp * (grid.pp if grid.vpp > 1 else 1)
    fits = [count for count in divisors(samples) if samples // count >= needed]
    where, ways = "train.steps_per_rollout", listed(fits)
    if samples % steps and fits:
        what = f"{samples} samples a rollout cannot be divided into {steps} optimizer steps"
        yield SlimeError(what, where=where, todo=f"Choose one of {ways}.")
    elif samples // steps < needed:
        unit = steps // math.gcd(steps, a_prompt)
        prompts = -(-needed * steps // (a_prompt * unit)) * unit
        todo = f"Set it to {prompts}{f', or {where} to one of {ways}' if fits else ''}."
        what = f"{samples // steps} samples an optimizer step are fewer than the {needed} that {grid.dp} data-parallel"
        yield SlimeError(f"{what} rank(s) need", where="rollout.prompts_per_step", todo=todo)
