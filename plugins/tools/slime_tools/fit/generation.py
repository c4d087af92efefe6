"""How long engines take to write a rollout: an estimate from sizes alone. No torch."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from slime.algo.stages import reinforces
from slime.config.paths import exists, resolve_rows
from slime.config.schema import ClusterConfig, EvalConfig, EvalSetConfig, RolloutConfig, SlimeConfig
from slime.data.shards import row_files
from slime_tools.fit.estimate import BF16, Rates, Work, generated
from slime_tools.memory.engine import EngineRank
from slime_tools.publish.part import NETWORK

GENERATION, EVALUATION = "generation", "evaluation"
LAYER_S = 4e-5
"""Seconds of a layer's small kernels in a step of decoding."""
EXCHANGE_S, BETWEEN_HOSTS_S = 3e-5, 2.5e-5
"""Seconds of an exchange, whatever its size: inside a host, and more for each doubling of the hosts."""
STEP_S = 2e-3
"""Seconds between two steps of decoding in which an engine's host chooses what is next (of the idle time that
`benchmarks/results/sitting-h200.md` has)."""
REQUEST_S = 6e-4
"""Seconds of the hosts' work for a request, whatever its length (SmolLM2 on an H200 and on H100s)."""
LOGIT_BYTES = 52
"""Read and written of each logit: made in bf16 and turned into fp32 (8), divided by the temperature, exponentiated and
the logarithm taken (24), one drawn by exponential noise (20)."""
DRAFTED = 1.5
"""Tokens of a step where a prediction layer drafts."""
POINTS = 16
"""Of the batch's decline, at which a step's time is taken."""
COUNTED_BYTES = 16e6
"""Largest file whose rows are counted."""


def engine_seconds(cfg: SlimeConfig, work: Work, ranks: Collection[EngineRank]) -> dict[str, float]:
    """What the engines do of a step, by part. Of an evaluation, on all held-out sets one after another, it is a share
    of every step between two.

    Raises:
        SlimeError: their sizes do not divide.
    """
    parts = {EVALUATION: 0.0}
    for held_out in cfg.eval.all().values() if cfg.eval.interval <= cfg.run.num_steps else ():
        asked = generated(cfg.rollout, held_out_prompts(cfg.rollout, held_out)[0], held_out)
        parts[EVALUATION] += rollout_seconds(cfg.rollout, cfg.cluster, asked, ranks) / cfg.eval.interval
    if reinforces(cfg.algo):
        parts[GENERATION] = rollout_seconds(cfg.rollout, cfg.cluster, work, ranks)
    return {name: seconds for name, seconds in parts.items() if seconds}


def rollout_seconds(rollout: RolloutConfig, cluster: ClusterConfig, work: Work, ranks: Iterable[EngineRank]) -> float:
    """Until all groups that decode have written what the rollout waits for; infinite without a token pool."""
    decoding = [rank for rank in ranks if rank.group.role.name != "prefill"]
    seconds = [generation_seconds(rollout, cluster, work, rank) for rank in decoding]
    requests = work.sequences * work.over_sampling * REQUEST_S
    return requests + 1 / sum(1 / one for one in seconds if one) if any(seconds) else math.inf


def held_out_prompts(rollout: RolloutConfig, held_out: EvalConfig | EvalSetConfig) -> tuple[int, bool]:
    """How many, and whether they are counted: where their file is not here, or large, they are taken to be a step's."""
    path = held_out.path
    files = row_files(resolve_rows(path)) if path and exists(path) else []
    size = sum(file.stat().st_size for file in files)
    if files and all(file.suffix == ".jsonl" for file in files) and size < COUNTED_BYTES:
        return sum(len(file.read_bytes().splitlines()) for file in files), True
    return rollout.prompts_per_step, False


def generation_seconds(rollout: RolloutConfig, cluster: ClusterConfig, work: Work, rank: EngineRank) -> float | None:
    """Seconds in which the engines of a group write a rollout, if they do all of it; None without a token pool.

    A rollout without over-sampling waits for the longest response; with it, for as many as it asked for while the batch
    stays full.
    """
    if not rank.pool_tokens or not rank.sequences:
        return None
    group, mean = rank.group, work.response
    of_engine = work.sequences * work.over_sampling / group.num_engines
    at_once = min(of_engine, group.dp * rank.pool_tokens / work.tokens, rollout.max_requests_per_engine)
    at_once = max(at_once, min(of_engine, group.dp))
    prompts = of_engine / work.samples_per_prompt * work.prompt * _products(cluster, rank)
    # The share (1 - w)^k of all responses is longer than w of the longest, of which the mean is 1 / (k + 1).
    longest = work.longest_response
    steepness = longest / mean - 1
    # Of a batch that is refilled, the mean request has written E[n^2] / 2 E[n].
    full = _step(cluster, rank, at_once, at_once * (work.prompt + longest / (steepness + 2)))
    turns = of_engine / at_once
    if work.over_sampling > 1:
        return prompts + turns * mean * full / _drafted(rank)
    decline = 0.0
    for point in range(POINTS):
        written = (point + 0.5) / POINTS  # of the longest
        running = at_once * (1 - written) ** steepness
        decline += _step(cluster, rank, running, running * (work.prompt + written * longest)) / POINTS
    return prompts + ((turns - 1) * mean * full + longest * decline) / _drafted(rank)


def _products(cluster: ClusterConfig, rank: EngineRank) -> float:
    """Seconds that the devices of an engine compute for a token."""
    return rank.flops / rank.group.devices_per_engine / Rates.of(cluster).products


def _drafted(rank: EngineRank) -> float:
    return DRAFTED if rank.drafts else 1.0


def _step(cluster: ClusterConfig, rank: EngineRank, running: float, written: float) -> float:
    """Seconds of a step of decoding. A device reads its weights while it multiplies with them, then its caches and
    logits; it exchanges twice a layer.

    Args:
        running: requests of the engine.
        written: tokens that these have in the caches.
    """
    model, group = rank.model, rank.group
    assert rank.pool_tokens, "asked of engines that decode"
    experts, topk = model.get("num_moe_experts"), model.get("moe_router_topk")
    met = 1 - (1 - topk / experts) ** max(running, 1.0) if experts and topk else 1.0
    memory = Rates.of(cluster).memory
    weights = (rank.weight_bytes - rank.expert_bytes * (1 - met)) / memory  # attention is read whole by every step
    beside = written / group.dp * rank.pool_bytes / rank.pool_tokens
    beside += running / group.dp * float(model["vocab_size"]) * LOGIT_BYTES
    exchanges = 2 * _exchange(cluster, rank, running) if group.tp > 1 else 0.0
    computed = max(weights, running * _products(cluster, rank)) + beside / memory
    return STEP_S + computed + rank.num_layers * (LAYER_S + exchanges)


def _exchange(cluster: ClusterConfig, rank: EngineRank, running: float) -> float:
    """Of the hidden states of all requests: a sum over the engine, or its experts' tokens there and back."""
    model, group, per_node = rank.model, rank.group, cluster.devices_per_node
    hosts = -(-group.devices_per_engine // per_node)
    link = Rates.of(cluster).link
    volume = float(running * model["hidden_size"] * BF16)
    if group.spreads_experts:  # a token goes once to each host that has an expert of it
        copies = int(model["moe_router_topk"])
        inside = volume / group.dp * copies / link
        outside = volume / group.dp * min(copies, hosts) * (hosts - 1) / hosts / NETWORK
    else:  # by all network cards of a host
        inside = 2 * volume / link
        outside = 2 * volume * (hosts - 1) / hosts / (NETWORK * min(per_node, group.devices_per_engine))
    return EXCHANGE_S + BETWEEN_HOSTS_S * math.log2(hosts) + inside + outside * (hosts > 1)
