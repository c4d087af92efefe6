"""What an engine is told: the fields of SGLang's `ServerArgs`, less the addresses that are found when it starts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from slime.config.hf import QUANTIZATION, read_hf_config, scores, trunk_architectures
from slime.config.paths import exists, located, resolve
from slime.config.schema import ClusterConfig, EvalConfig, ModelConfig, Role, RolloutConfig, SlimeConfig
from slime.errors import SlimeError
from slime.topology.adapters import adapter_fields
from slime.topology.engines import EngineGroup
from slime.topology.placement import SAVER, num_hosts
from slime.topology.quantization import weight_format
from slime.topology.recordings import numbers_told, recordings_of

UNPUBLISHED = "unpublished"
"""Weight version of an engine that has not received weights yet."""
OVERRIDES = "json_model_override_args"
DEEPEP_RANKS = (2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 144, 160)
"""Sizes for which DeepEP has settings of its normal kernels (`get_dispatch_config` of deep_ep; 48 and 96: SGLang's
build). Low-latency kernels take any size that divides the experts."""
DISPATCH_TOKENS = "SGLANG_DEEPEP_NUM_MAX_DISPATCH_TOKENS_PER_RANK"


def server_fields(cfg: SlimeConfig, group: EngineGroup, index: int) -> dict[str, Any]:
    """Fields of `ServerArgs` of engine `index` (over all groups), one of `group`: what slime sets, then the user's own.

    The folders of model and tokenizer are those of the host that asks.
    """
    model, hosts = _folder(group.model or cfg.model.path), num_hosts(cfg.cluster, group.devices_per_engine)
    if group.model:
        scored_by = _scored_by(group.model)
        loads = {"load_format": "auto", "weight_version": "frozen", "skip_tokenizer_init": False}
        loads |= {"is_embedding": True} if scored_by else {}
        overrides: Mapping[str, Any] = {"architectures": scored_by} if scored_by else {}
    else:
        # Only stop strings need text inside the engine; without them it spares itself tokenizer and detokenizer.
        bare = not has_stop_strings(cfg.rollout, cfg.eval)
        loads = {"load_format": "dummy", "weight_version": UNPUBLISHED, "skip_tokenizer_init": bare}
        loads |= adapter_fields(cfg.model, cfg.train, on_gpus=cfg.cluster.on_gpus)
        for recording in (*recordings_of(cfg), *numbers_told()):
            loads |= recording.server_fields
        overrides = _overrides(cfg.model, cfg.rollout)
    fields: dict[str, Any] = {
        "model_path": model,
        "device": cfg.cluster.device.value,
        **loads,
        "random_seed": cfg.run.seed + index,  # engines with one seed would give one prompt the same samples
        "skip_server_warmup": True,
        "log_level_http": "warning",
        **most_running(group, on_gpus=cfg.cluster.on_gpus),
        **_device_fields(cfg.cluster, group),
        **_role_fields(cfg.cluster, group),
        **({"nnodes": hosts} if hosts > 1 else {}),
        **draft_fields(group.sglang),
        **group.sglang,
    }
    if group.model or not cfg.cluster.on_gpus:
        fields.pop(SAVER, None)  # nobody takes turns with frozen engines, and host memory cannot be given up
    if drafts_with_own_layer(group.sglang):  # SGLang finds it by itself for some architectures only
        fields.setdefault("speculative_draft_model_path", model)
    if cfg.model.tokenizer is not None and not group.model:
        fields["tokenizer_path"] = _folder(cfg.model.tokenizer)
    if overrides:
        fields[OVERRIDES] = json.dumps(json.loads(fields.get(OVERRIDES, "{}")) | overrides)
    return fields


def has_stop_strings(rollout: RolloutConfig, evaluation: EvalConfig) -> bool:
    return any(own.sampling.stop for own in (rollout, *evaluation.all().values()))


def _scored_by(model: str) -> list[str]:
    """The architectures of a reward model without its head, by which SGLang chooses attention and caches. None of a
    model that writes, or of one that cannot be read, which `slime.compose.engine_rules` tells."""
    try:
        hf = read_hf_config(model)
    except SlimeError:
        return []
    return trunk_architectures(hf) if scores(hf) else []


def _folder(path: str) -> str:
    return str(resolve(path)) if exists(path) else located(path)


def _overrides(model: ModelConfig, rollout: RolloutConfig) -> dict[str, Any]:
    """What an engine's config.json has otherwise than the trained model's."""
    layers = {} if model.num_layers is None else {"num_hidden_layers": model.num_layers}
    form = weight_format(model, rollout)
    return layers | ({QUANTIZATION: form.to_config()} if form else {})


def drafts_with_own_layer(sglang: Mapping[str, Any]) -> bool:
    """Whether engines speculate with the model's own multi-token prediction layer, as SGLang's EAGLE does."""
    return str(sglang.get("speculative_algorithm")).upper() in ("EAGLE", "NEXTN")


def _device_fields(cluster: ClusterConfig, group: EngineGroup) -> dict[str, Any]:
    if not cluster.on_gpus:
        # An idle scheduler that polls would take a core from the trainer. And torch's attention has other last bits for
        # a part of a prompt than for all of it: where SGLang cuts would depend on what else is in a batch.
        return {"sleep_on_idle": True, "chunked_prefill_size": -1}
    fields: dict[str, Any] = {SAVER: cluster.colocated}
    if group.role is not Role.prefill and not group.sglang.get("cuda_graph_bs_decode"):
        fields["cuda_graph_max_bs_decode"] = _largest_graph(group)
    return fields


def most_running(group: EngineGroup, *, on_gpus: bool = True) -> dict[str, Any]:
    """Requests that an engine decodes at once, where SGLang's own number would not do: with speculation 48, of which
    64 data-parallel ranks get none; with deepep more than that has room for; where few ever come, to engines of one
    rank, thousands, each with 4 bytes for every token of the model's context."""
    bounded = on_gpus and group.dp == 1 and group.role is Role.regular and group.model is None
    if bounded or uses_deepep(group.sglang) or group.sglang.get("speculative_algorithm"):
        return {"max_running_requests": requests_per_rank(group) * group.dp}
    return {}


def uses_deepep(sglang: Mapping[str, Any]) -> bool:
    return sglang.get("moe_a2a_backend") == "deepep"


def requests_per_rank(group: EngineGroup) -> int:
    """Requests that the CUDA graphs of one data-parallel attention rank cover."""
    sizes = group.sglang.get("cuda_graph_bs_decode") or [
        group.sglang.get("cuda_graph_max_bs_decode") or _largest_graph(group)
    ]
    return int(max(sizes))


def _largest_graph(group: EngineGroup) -> int:
    """Requests of one data-parallel rank, rounded up to a batch for which SGLang captures a graph.

    With one more than its CUDA graphs cover, SGLang launches every kernel of every decode step by itself. Left alone it
    covers 256 requests on an H100 or H200, 512 from `tp_size` 4 on.
    """
    step = graph_step(group)
    return -(-group.most_requests // (group.dp * step)) * step


def prefill_chunk(memory_mib: float | None) -> int:
    """Tokens of prompts in one pass (`chunked_prefill_size`), as SGLang chooses by a device's memory; one that nobody
    told is taken to have 80 GiB."""
    sizes = ((35, 2048), (60, 4096), (160, 8192))
    return next((size for most, size in sizes if (memory_mib or 80 * 1024) < most * 1024), 16384)


def graph_step(group: EngineGroup) -> int:
    """SGLang captures graphs of multiples of this many requests (`get_batch_sizes_to_capture`): where tensor-parallel
    ranks share out a batch's tokens, each needs as many."""
    shared = group.dp > 1 or group.spreads_experts or group.sglang.get("moe_dense_tp_size") is not None
    return group.attention_tp // math.gcd(group.attention_tp, num_draft_tokens(group.sglang)) if shared else 1


DRAFT_SHAPE = {"speculative_num_steps": 3, "speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}
"""What SGLang takes for the served families where none of the three is set."""


def draft_fields(sglang: Mapping[str, Any]) -> dict[str, Any]:
    """The shape of EAGLE's drafts, with what SGLang would derive; empty without them."""
    if str(sglang.get("speculative_algorithm")).upper() not in ("EAGLE", "EAGLE3", "NEXTN"):
        return {}
    given = {key: sglang[key] for key in DRAFT_SHAPE if sglang.get(key) is not None}
    if given.get("speculative_eagle_topk") == 1 and "speculative_num_steps" in given:
        given.setdefault("speculative_num_draft_tokens", given["speculative_num_steps"] + 1)
    return given or dict(DRAFT_SHAPE)


def num_draft_tokens(sglang: Mapping[str, Any]) -> int:
    """Tokens that a decode step brings for each request."""
    shape = {**sglang, **draft_fields(sglang)}
    return int(shape.get("speculative_num_draft_tokens") or 1) if sglang.get("speculative_algorithm") else 1


def dispatch_tokens(group: EngineGroup) -> int:
    """Tokens that a rank may bring to one exchange of deepep while decoding, rounded up to 8.

    A data-parallel attention group scatters its batch over its tensor-parallel ranks.
    """
    running = int(group.sglang.get("max_running_requests") or 0)
    graphs = 0 if group.role is Role.prefill and running else requests_per_rank(group)
    requests = max(graphs, -(-running // group.dp))
    tokens = -(-requests * num_draft_tokens(group.sglang) // group.attention_tp)
    return -(-tokens // 8) * 8


def _role_fields(cluster: ClusterConfig, group: EngineGroup) -> dict[str, Any]:
    if group.role is Role.regular:
        return {}
    fields: dict[str, Any] = {"disaggregation_mode": group.role.value}
    if cluster.ib_devices and transfer_backend(group) == "mooncake":
        fields["disaggregation_ib_device"] = ",".join(cluster.ib_devices)
    return fields


def transfer_backend(group: EngineGroup) -> str:
    """What moves KV caches from prefill to decode engines; SGLang's own choice is mooncake over RDMA."""
    return str(group.sglang.get("disaggregation_transfer_backend", "mooncake"))
