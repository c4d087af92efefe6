"""Values that follow from others: filled in when absent, so that the resolved config shows them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from slime.compose.chosen import choices_of, complete, default_trackers, switched
from slime.compose.options import completed, defaults_of
from slime.config.hf import config_folder, read_hf_config
from slime.config.schema import AlgoConfig, ImportanceTokens, ModelConfig, SlimeConfig
from slime.errors import SlimeError
from slime.layout import SIZE_KEYS, default_etp
from slime.plugins import Plugins
from slime.topology.engines import with_sizes
from slime.topology.quantization import choices, quantization_of, quantizes
from slime.topology.topology import read_topology

LOGPROB_ALARM = 0.05
"""Nats a token. bf16 on both sides costs 0.008 to 0.027 where experts do not tie, a stale router 0.25 and more
(`benchmarks/results/generation-h200.md`)."""


def derive(cfg: SlimeConfig, plugins: Plugins) -> None:
    """Complete `cfg` in place; what the user set is never changed (contradictions are found by `check`)."""
    megatron = cfg.train.megatron
    for key, value in required_megatron(megatron).items():
        megatron.setdefault(key, value)
    if _size(megatron, "ep") > 1:
        megatron.setdefault(SIZE_KEYS["etp"], default_etp(_size(megatron, "tp"), _size(megatron, "ep")))
    if megatron.get("recompute_granularity") == "full":
        megatron.setdefault("recompute_method", "uniform")
        megatron.setdefault("recompute_num_layers", 1)
    if cfg.observe.logprob_alarm is None:
        alarms = [quantization_of(key).logprob_alarm for key in choices(cfg.rollout)]
        cfg.observe.logprob_alarm = max([LOGPROB_ALARM, *alarms])
    if cfg.algo.importance_tokens is None and not cfg.algo.rollout_logprobs_as_old:
        differs = quantizes(cfg.rollout) or has_experts(cfg.model, plugins)
        cfg.algo.importance_tokens = ImportanceTokens.all if differs else ImportanceTokens.stale
    with contextlib.suppress(SlimeError):  # `check` finds it again
        topology = read_topology(cfg)
        if topology.groups or topology.frozen:
            cfg.rollout.engines = with_sizes(cfg.rollout.engines, (*topology.groups, *topology.frozen))
    cfg.observe.trackers = switched(default_trackers(plugins) | cfg.observe.trackers)
    cfg.filter.then = switched(cfg.filter.then)
    complete(choices_of(cfg), plugins)
    algo = cfg.algo
    objective, estimator = (plugins.schemas.get(key) for key in (f"algo/{algo.name}", f"estimator/{algo.advantage}"))
    algo.options = completed(objective, _own_defaults(algo, objective) | algo.options)
    algo.advantage_options = completed(estimator, _own_defaults(algo, estimator) | algo.advantage_options)


def _own_defaults(algo: AlgoConfig, schema: type | None) -> dict[str, Any]:
    """Default options of an objective or estimator that are no keys of `algo`."""
    shared = {field.name for field in dataclasses.fields(algo)}
    return {key: value for key, value in defaults_of(schema).items() if key not in shared}


def has_experts(model: ModelConfig, plugins: Plugins) -> bool:
    """False for a model that cannot be read, which `check` reports."""
    with contextlib.suppress(SlimeError, KeyError, TypeError, ValueError, ArithmeticError):
        hf = read_hf_config(config_folder(model), model.num_layers)
        return bool(plugins.models.create(model.family).transformer_config(hf).get("num_moe_experts"))
    return False


def required_megatron(megatron: dict[str, Any]) -> dict[str, Any]:
    """What this trainer needs of Megatron-core under these parallel sizes; reasons: `slime.compose.rules`."""
    required: dict[str, Any] = {}
    if _size(megatron, "tp") > 1:
        required["sequence_parallel"] = True
    if megatron.get("moe_token_dispatcher_type") != "flex":
        required["moe_token_dispatcher_type"] = "alltoall"
    if _size(megatron, "vpp") > 1:
        required |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}
    if _size(megatron, "cp") > 1:
        required["cp_comm_type"] = "all_gather"
    return required


def _size(megatron: dict[str, Any], name: str) -> int:
    """A parallel size, 1 while it is unset or of a wrong type (which `check` reports)."""
    value = megatron.get(SIZE_KEYS[name])
    return value if isinstance(value, int) else 1
