"""What a parallel layout must respect so that Megatron-core and slime compute the right thing.

Each rule yields one error a violation. The reasons are Megatron-core 0.16.1's: without sequence parallelism its
gradients of replicated norms are wrong under TP; with ETP < TP and EP < TP expert gradients are not summed over TP; the
`allgather` dispatcher needs equal token counts; the interleaved schedule deadlocks unless its sends overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slime.config.derive import required_megatron
from slime.config.paths import resolve
from slime.config.schema import Device, Placement, SlimeConfig, Transport
from slime.errors import SlimeError
from slime.plan.layout import Grid, split_layers

MEGATRON = "train.megatron"


def layout_problems(cfg: SlimeConfig, grid: Grid, architecture: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Rules about ranks and layers.

    Args:
        architecture: keywords of Megatron's TransformerConfig that the model's bridge gives.
    """
    model = {**architecture, **cfg.train.megatron}
    yield from _required(cfg)
    yield from _unsupported(cfg)
    yield from _heads(model, grid)
    yield from _experts(model, grid)
    yield from _stages(model, grid)
    yield from _speculation(cfg, model)
    yield from _expert_order(cfg)
    yield from _prediction(cfg, model)


def _required(cfg: SlimeConfig) -> Iterator[SlimeError]:
    megatron = cfg.train.megatron
    for key, value in required_megatron(megatron).items():
        if megatron[key] != value:
            todo = f"Remove it, or set {MEGATRON}.{key}={str(value).lower()}."
            yield SlimeError(f"is {megatron[key]}, but this layout needs {value}", where=f"{MEGATRON}.{key}", todo=todo)


UNSUPPORTED = {
    f"{MEGATRON}.cross_entropy_loss_fusion": "it takes the gradient through bf16",
    f"{MEGATRON}.gradient_accumulation_fusion": "it needs apex",
    f"{MEGATRON}.fp8": "it needs Transformer Engine",
    f"{MEGATRON}.fp4": "it needs Transformer Engine",
    "train.optimizer.use_precision_aware_optimizer": "it needs Transformer Engine",
}
"""Fields that Megatron-core would take and this trainer cannot honour, with the reason."""


def _unsupported(cfg: SlimeConfig) -> Iterator[SlimeError]:
    for where, reason in UNSUPPORTED.items():
        _, section, key = where.split(".")
        if getattr(cfg.train, section).get(key):
            yield SlimeError(f"is not supported: {reason}", where=where, todo="Remove it.")


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
    if grid.etp != grid.tp and grid.ep < grid.tp:
        yield SlimeError(
            f"is {grid.etp}, which needs an expert parallel size of at least {grid.tp}, got {grid.ep}",
            where=f"{MEGATRON}.expert_tensor_parallel_size",
            todo=f"Set it to {grid.tp}, or {where} to {grid.tp} or more.",
        )


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


def drafts_with_own_layer(cfg: SlimeConfig) -> bool:
    """Whether the engines speculate with the model's own multi-token prediction layer, as SGLang's EAGLE does."""
    return str(cfg.rollout.sglang.get("speculative_algorithm")).upper() in ("EAGLE", "NEXTN")


def _speculation(cfg: SlimeConfig, model: Mapping[str, Any]) -> Iterator[SlimeError]:
    """Whether what the engines draft with is what is published to them."""
    draft = cfg.rollout.sglang.get("speculative_draft_model_path")
    if draft is not None and resolve(draft) != resolve(cfg.model.path):
        what = "names another model, but publishing renews the trained one only"
        yield SlimeError(what, where="rollout.sglang.speculative_draft_model_path", todo="Remove it.")
    elif drafts_with_own_layer(cfg) and not model.get("mtp_num_layers"):
        where, todo = "rollout.sglang.speculative_algorithm", "Remove it."
        yield SlimeError("needs a multi-token prediction layer, which this model does not have", where=where, todo=todo)


def _expert_order(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """SGLang reorders experts for these kernels when it starts, not when it loads a new version."""
    for key in ("moe_runner_backend", "speculative_moe_runner_backend"):
        if str(cfg.rollout.sglang.get(key)).startswith("flashinfer_trtllm"):
            what = "keeps experts in an order of its own, which publishing would undo"
            yield SlimeError(what, where=f"rollout.sglang.{key}", todo="Use triton.")


def placement_problems(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Whether trainers and engines fit the devices."""
    cluster = cfg.cluster
    have = cluster.num_nodes * cluster.devices_per_node
    engines = num_engines(cfg) * devices_per_engine(cfg)
    if cluster.device is Device.cpu:
        need, parts = cluster.num_trainers, "one for each trainer rank"
    elif cluster.placement is Placement.colocated:
        need, parts = max(cluster.num_trainers, engines), f"{cluster.num_trainers} trainer ranks share {engines}"
    else:
        need, parts = (
            cluster.num_trainers + engines,
            f"{cluster.num_trainers} trainer ranks and {engines} engine devices",
        )
    if need > have:
        where = f"cluster {cluster.name} has {cluster.num_nodes} x {cluster.devices_per_node} devices"
        todo = (
            "Lower cluster.num_trainers or cluster.num_engines, or raise cluster.num_nodes or cluster.devices_per_node."
        )
        yield SlimeError(f"the run needs {need} ({parts})", where=where, todo=todo)
    if engines:
        yield from _engine_problems(cfg, engines)


def _engine_problems(cfg: SlimeConfig, engines: int) -> Iterator[SlimeError]:
    """Whether engines, which take so many devices together, can stand and be reached."""
    cluster = cfg.cluster
    if devices_per_engine(cfg) > cluster.devices_per_node:
        where = "rollout.sglang.tp_size"
        todo = f"Use at most {cluster.devices_per_node}: an engine stays on one host."
        yield SlimeError(f"an engine needs {devices_per_engine(cfg)} devices", where=where, todo=todo)
    if cluster.placement is Placement.colocated and engines > cluster.num_trainers:
        what = (
            f"engines take {engines} devices, but only {cluster.num_trainers} have a trainer rank to take weights from"
        )
        yield SlimeError(what, where="cluster.num_engines", todo=f"Set cluster.num_trainers={engines}.")
    yield from _transport(cfg)


def transport_of(cfg: SlimeConfig) -> Transport:
    """How weights reach the engines: `weights.transport`, or what it stands for."""
    if cfg.weights.transport is not Transport.auto:
        return cfg.weights.transport
    return Transport.ipc if _can_share_memory(cfg) else Transport.broadcast


def _can_share_memory(cfg: SlimeConfig) -> bool:
    """Whether every publisher and its engine see the same memory."""
    if cfg.cluster.placement is Placement.colocated:
        return True
    return cfg.cluster.device is Device.cpu and cfg.cluster.num_nodes == 1


def _transport(cfg: SlimeConfig) -> Iterator[SlimeError]:
    chosen, where, todo = transport_of(cfg), "weights.transport", "Leave it out."
    if chosen is Transport.ipc and not _can_share_memory(cfg):
        yield SlimeError("is ipc, but engines and trainers share no memory", where=where, todo=todo)
    colocated = cfg.cluster.placement is Placement.colocated
    if chosen is Transport.broadcast and colocated and cfg.cluster.device is Device.cuda:
        yield SlimeError("is broadcast, but NCCL takes one process a GPU", where=where, todo=todo)


def generates(cfg: SlimeConfig) -> bool:
    """Whether the run ever samples: to learn from it, or to score the held-out prompts."""
    return cfg.algo.name != "sft" or cfg.eval.path is not None


def num_engines(cfg: SlimeConfig) -> int:
    """Engines that the run starts: `cluster.num_engines`, unless it never generates."""
    return cfg.cluster.num_engines if generates(cfg) else 0


def devices_per_engine(cfg: SlimeConfig) -> int:
    """Devices one SGLang engine takes: tp_size x pp_size."""
    return int(cfg.rollout.sglang.get("tp_size", 1)) * int(cfg.rollout.sglang.get("pp_size", 1))


def batch_problems(cfg: SlimeConfig, grid: Grid) -> Iterator[SlimeError]:
    """Whether every sampled sequence fits a micro-batch and every rank gets samples."""
    if cfg.algo.name == "sft":  # what is sampled is never trained on; demonstrations are checked as they are read
        return
    longest = cfg.rollout.max_prompt_tokens + cfg.rollout.sampling.max_response_tokens
    padded = -(-longest // grid.packing_align) * grid.packing_align
    cap = cfg.train.max_tokens_per_micro_batch
    if padded > cap:
        pad = f", {padded} when padded to a multiple of {grid.packing_align}" if padded > longest else ""
        yield SlimeError(
            f"is {cap}, but a sequence may have {longest} tokens{pad}",
            where="train.max_tokens_per_micro_batch",
            todo=f"Set it to {padded} or more, or lower rollout.max_prompt_tokens or max_response_tokens.",
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
