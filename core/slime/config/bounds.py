"""Which numbers of slime's own keys are possible."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slime.config.keys import ANY_NAME, own_keys, value_of
from slime.config.schema import SlimeConfig
from slime.errors import SlimeError


@dataclass(frozen=True)
class Bound:
    """A number must be at least `least` (above it, if `strict`)."""

    least: float
    strict: bool = False

    def holds(self, value: float) -> bool:
        return math.isfinite(value) and (value > self.least if self.strict else value >= self.least)


AT_LEAST_0, AT_LEAST_1, POSITIVE = Bound(0), Bound(1), Bound(0, strict=True)
BOUNDS: Mapping[Bound, tuple[str, ...]] = {
    AT_LEAST_0: (
        "run.seed",
        "run.num_steps",
        "train.lr_warmup_steps",
        "train.checkpoint.interval",
        "sft.num_steps",
        "sft.lr_warmup_steps",
        "algo.clip_low",
        "algo.clip_high",
        "algo.kl_coef",
        "rollout.max_weight_lag",
        "algo.importance_low",
        "rollout.sampling.temperature",
        "eval.sampling.temperature",
        "reward.max_failed_share",
        "observe.samples_mb",
        "observe.logprob_alarm",
    ),
    AT_LEAST_1: (
        "model.num_layers",
        "cluster.num_nodes",
        "cluster.devices_per_node",
        "cluster.num_trainers",
        "cluster.device_memory_mb",
        "rollout.engines.<name>.devices",
        "rollout.engines.<name>.devices_per_engine",
        "algo.importance_high",
        "train.max_tokens_per_micro_batch",
        "train.steps_per_rollout",
        "train.logprob_chunk_tokens",
        "train.lr_decay_steps",
        "train.checkpoint.keep",
        "sft.batch_size",
        "rollout.prompts_per_step",
        "rollout.samples_per_prompt",
        "rollout.sampling.max_response_tokens",
        "rollout.sampling.max_sequence_tokens",
        "eval.sampling.max_sequence_tokens",
        "rollout.max_prompt_tokens",
        "rollout.max_requests_per_engine",
        "rollout.over_sampling",
        "eval.interval",
        "eval.samples_per_prompt",
        "eval.sampling.max_response_tokens",
        "reward.num_workers",
        "reward.memory_mb",
        "weights.bucket_mb",
        "weights.full_every",
        "weights.num_sources",
    ),
    POSITIVE: (
        "cluster.host_memory_gb",
        "cluster.start_timeout_s",
        "cluster.hang_timeout_s",
        "train.mtp_loss_scale",
        "sft.lr",
        "rollout.sampling.top_p",
        "rollout.request_timeout_s",
        "eval.sampling.top_p",
        "reward.timeout_s",
    ),
    Bound(1, strict=True): ("algo.clip_dual",),
}
AT_MOST_1 = (
    "algo.clip_low",
    "algo.importance_low",
    "rollout.sampling.top_p",
    "eval.sampling.top_p",
    "reward.max_failed_share",
)
TOP_K = ("rollout.sampling.top_k", "eval.sampling.top_k")


def number_problems(cfg: SlimeConfig) -> Iterator[SlimeError]:
    """Numbers out of their bounds."""
    for bound, keys in BOUNDS.items():
        for key in (named for name in keys for named in _named(cfg, name)):
            value = value_of(cfg, key)
            if value is not None and not bound.holds(value):
                than = "above" if bound.strict else "at least"
                yield _out_of_range(key, f"must be {than} {bound.least:g}, got {value}")
    for key in AT_MOST_1:
        if value_of(cfg, key) > 1:
            yield _out_of_range(key, f"must be at most 1, got {value_of(cfg, key)}")
    for key in TOP_K:
        if value_of(cfg, key) != -1 and value_of(cfg, key) < 1:
            yield _out_of_range(key, f"must be -1 (all tokens) or at least 1, got {value_of(cfg, key)}")


def _named(cfg: SlimeConfig, key: str) -> list[str]:
    """The key, once for each name of the user's that it has a place for."""
    home, place, rest = key.partition(f".{ANY_NAME}.")
    return [f"{home}.{name}.{rest}" for name in value_of(cfg, home)] if place else [key]


def _out_of_range(key: str, what: str) -> SlimeError:
    documented = own_keys().get(key) or own_keys()[re.sub(r"^(rollout\.engines)\.[^.]+", rf"\1.{ANY_NAME}", key)]
    return SlimeError(what, where=key, todo=f"It is: {documented.doc}")
