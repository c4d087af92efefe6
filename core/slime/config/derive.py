"""Values that follow from others: filled in when absent, so that the resolved config shows them."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from slime.config.schema import SlimeConfig
from slime.errors import SlimeError
from slime.plugins import Plugins
from slime.topology.engines import with_sizes
from slime.topology.layout import SIZE_KEYS, default_etp

LOGPROB_ALARM = 0.05
"""Nats a token. bf16 on both sides costs 0.008 to 0.027 where experts do not tie, a stale router 0.25 and more
(`benchmarks/results/generation-h200.md`)."""
FP8_LOGPROB_ALARM = 0.2
"""Nats a token. Weights in E4M3 alone cost 0.073 on the tiny mixture of experts, a third of it by tokens that other
experts take (`benchmarks/results/fp8-gap.md`), activations in E4M3 too 0.05 and 0.15 on two narrow random ones on an
H200; a router or an output projection of one layer that stays at other weights brings the first to 0.29 and 0.35.
Random experts that tie pass either limit without a fault."""


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
        cfg.observe.logprob_alarm = LOGPROB_ALARM if cfg.rollout.fp8 is None else FP8_LOGPROB_ALARM
    with contextlib.suppress(SlimeError):  # `check` finds it again
        cfg.rollout.engines = with_sizes(cfg)
    for kind, section in (("reward", cfg.reward), ("filter", cfg.filter), ("buffer", cfg.buffer)):
        section.options = _schema_defaults(plugins.schemas.get(f"{kind}/{section.name}")) | section.options
    cfg.observe.trackers = {
        name: _schema_defaults(plugins.schemas.get(f"tracker/{name}")) | ({} if options is True else options)
        if options is True or isinstance(options, dict)
        else options
        for name, options in cfg.observe.trackers.items()
        if options not in (None, False)
    }


def required_megatron(megatron: dict[str, Any]) -> dict[str, Any]:
    """What this trainer needs of Megatron-core under these parallel sizes; each has a reason in `slime.plan.rules`."""
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


def _schema_defaults(schema: type | None) -> dict[str, Any]:
    """The options a schema gives a default; the others must be set and are found missing by `check`."""
    defaults = {}
    for field in dataclasses.fields(schema) if schema else ():
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    return defaults
