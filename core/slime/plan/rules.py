"""What a parallel layout must respect so that Megatron-core and slime compute the right thing.

Each rule yields one error a violation. The reasons are Megatron-core 0.16.1's: without sequence parallelism its
gradients of replicated norms are wrong under TP; with ETP < TP and EP < TP expert gradients are not summed over TP; the
`allgather` dispatcher needs equal token counts; the interleaved schedule deadlocks unless its sends overlap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from slime.config.derive import required_megatron
from slime.config.keys import value_of
from slime.config.megatron_fields import ACCEPTED, OF_THE_MODEL
from slime.config.schema import Device, SlimeConfig
from slime.errors import SlimeError
from slime.rollout.limits import longest_of
from slime.topology.engines import engine_groups, home_of
from slime.topology.layout import Grid, split_layers, trains_experts
from slime.topology.server_fields import drafts_with_own_layer
from slime.topology.sglang_rules import DEEPEP_RANKS, sglang_problems

MEGATRON = "train.megatron"


def layout_problems(cfg: SlimeConfig, grid: Grid, architecture: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Rules about ranks and layers.

    Args:
        architecture: keywords of Megatron's TransformerConfig that the model's bridge gives.
    """
    model = {"bf16": cfg.cluster.device is Device.cuda, **architecture, **cfg.train.megatron}
    yield from _required(cfg)
    yield from _needed(cfg, model)
    yield from _recomputed(model)
    yield from _heads(model, grid)
    yield from _experts(model, grid)
    yield from _flex(cfg, model, grid)
    yield from _stages(model, grid)
    yield from _speculation(cfg, model)
    yield from _expert_order(cfg)
    yield from _prediction(cfg, model)
    yield from sglang_problems(cfg, model)


def _required(cfg: SlimeConfig) -> Iterator[SlimeError]:
    megatron = cfg.train.megatron
    for key, value in required_megatron(megatron).items():
        if megatron[key] != value:
            todo = f"Remove it, or set {MEGATRON}.{key}={str(value).lower()}."
            yield SlimeError(f"is {megatron[key]}, but this layout needs {value}", where=f"{MEGATRON}.{key}", todo=todo)


def _needed(cfg: SlimeConfig, model: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Fields that ask for something without what they need for it."""
    for section, fields in ACCEPTED.items():
        for key, value in value_of(cfg, section).items():
            field = fields.get(key)
            if field and field.asks(value) and (missing := _missing(field.needs, cfg, model)):
                words = OF_THE_MODEL.get(missing, missing.replace("!=", " other than ").replace(">", " above "))
                todo = "Remove it." if missing in OF_THE_MODEL else "Set that too, or remove this."
                yield SlimeError(f"does nothing without {words}", where=f"{section}.{key}", todo=todo)


def _missing(needs: str, cfg: SlimeConfig, model: Mapping[str, Any]) -> str | None:
    """The first condition of `Accepted.needs` that does not hold."""
    return next((need for need in needs.split() if not _holds(need, cfg, model)), None)


def _holds(need: str, cfg: SlimeConfig, model: Mapping[str, Any]) -> bool:
    key, sign, wanted = re.split("(!=|=|>|$)", need, maxsplit=1)
    section, _, name = key.rpartition(".")
    holder = model if section == MEGATRON else value_of(cfg, section)
    value = holder.get(name) if isinstance(holder, Mapping) else getattr(holder, name)
    if sign == ">":
        return (value or 0) > int(wanted)
    written = str(getattr(value, "name", value)).lower()
    return {"=": written == wanted, "!=": written != wanted}.get(sign, bool(value))


def _recomputed(model: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Whether the model has the parts that are to be computed again."""
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
        yield SlimeError(
            f"is {grid.etp}, which needs an expert parallel size of at least {grid.tp}, got {grid.ep}",
            where=f"{MEGATRON}.expert_tensor_parallel_size",
            todo=f"Set it to {grid.tp}, or {where} to {grid.tp} or more.",
        )


def _flex(cfg: SlimeConfig, model: Mapping[str, Any], grid: Grid) -> Iterator[SlimeError]:
    """Whether DeepEP can exchange tokens between that number of ranks."""
    if model.get("moe_token_dispatcher_type") != "flex":
        return
    where, ranks = f"{MEGATRON}.moe_token_dispatcher_type", grid.etp * grid.ep
    if cfg.cluster.device is Device.cpu:
        yield SlimeError("is flex, whose DeepEP needs GPUs", where=where, todo="Remove it.")
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


def _prediction(cfg: SlimeConfig, model: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Whether a multi-token prediction layer that is to learn is there, on the last stage."""
    where, todo, learns = "train.mtp_loss_scale", "Leave it empty.", cfg.train.mtp_loss_scale is not None
    if learns and not model.get("mtp_num_layers"):
        yield SlimeError("needs a multi-token prediction layer, which this model does not have", where=where, todo=todo)
    layout = model.get("pipeline_model_parallel_layout")
    *others, last = layout.split("|") if isinstance(layout, str) else ["m" * learns]
    if ("m" in last) != learns or "m" in "".join(others):
        what = "has the prediction layer, 'm', in its last part if train.mtp_loss_scale is set, and nowhere else"
        yield SlimeError(what, where=f"{MEGATRON}.pipeline_model_parallel_layout", todo="Write it like 'Ett|ttmL'.")


def _speculation(cfg: SlimeConfig, model: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Whether what the engines draft with is what is published to them."""
    for group in engine_groups(cfg):
        draft = group.sglang.get("speculative_draft_model_path")
        if draft is not None and draft != cfg.model.path:
            what, where = "names another model, but publishing renews the trained one only", "draft_model_path"
        elif drafts_with_own_layer(group.sglang) and not model.get("mtp_num_layers"):
            what, where = "needs a multi-token prediction layer, which this model does not have", "algorithm"
        else:
            continue
        yield SlimeError(what, where=home_of(cfg, group.name, f"speculative_{where}"), todo="Remove it.")


def _expert_order(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """SGLang reorders experts for these kernels when it starts, not when it loads a new version."""
    for group in engine_groups(cfg):
        for key in ("moe_runner_backend", "speculative_moe_runner_backend"):
            if str(group.sglang.get(key)).startswith("flashinfer_trtllm"):
                what = "keeps experts in an order of its own, which publishing would undo"
                yield SlimeError(what, where=home_of(cfg, group.name, key), todo="Use triton.")


def batch_problems(cfg: SlimeConfig, grid: Grid) -> Iterator[SlimeError]:
    """Whether every sampled sequence fits a micro-batch and every rank gets samples."""
    if cfg.algo.name == "sft":  # what is sampled is never trained on; demonstrations are checked as they are read
        return
    longest = longest_of(cfg.rollout, cfg.rollout.sampling)
    padded = -(-longest // grid.packing_align) * grid.packing_align
    cap = cfg.train.max_tokens_per_micro_batch
    if padded > cap:
        pad = f", {padded} when padded to a multiple of {grid.packing_align}" if padded > longest else ""
        yield SlimeError(
            f"is {cap}, but a sequence may have {longest} tokens{pad}",
            where="train.max_tokens_per_micro_batch",
            todo=f"Set it to {padded} or more, or rollout.sampling.max_sequence_tokens to {cap} or less.",
        )
    yield from _shares(cfg, grid)


def _shares(cfg: SlimeConfig, grid: Grid) -> Iterator[SlimeError]:
    samples, steps = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt, cfg.train.steps_per_rollout
    if samples % steps:
        what = f"{samples} samples a rollout cannot be divided into {steps} optimizer steps"
        yield SlimeError(what, where="train.steps_per_rollout", todo=f"Choose a divisor of {samples}.")
    needed = grid.dp * (grid.pp if grid.vpp > 1 else 1)
    if samples // steps < needed:
        what = f"{samples // steps} samples an optimizer step are fewer than the {needed} that {grid.dp} data-parallel"
        yield SlimeError(
            f"{what} rank(s) need", where="rollout.prompts_per_step", todo="Raise it, or lower train.steps_per_rollout."
        )
