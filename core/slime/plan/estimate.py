"""How long a step of a layout takes, part by part: an estimate from sizes alone, to put layouts in order. No torch.

The rates are those of H100s and H200s with 400 Gb/s a GPU between hosts; a test holds the sum against training that was
measured (`benchmarks/results/train-h200.md`). Parts that overlap in a real run are added up here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slime.config.schema import SlimeConfig
from slime.models.shapes import Block
from slime.rollout.limits import longest_of
from slime.topology.engine_memory import EngineRank
from slime.topology.layout import Grid, split_layers
from slime.topology.memory import TrainerRank
from slime.topology.parameters import Weight

MATMUL = 0.55 * 989e12
"""FLOP/s of a GPU's matrix products in bf16: 55 % of what the maker promises."""
LAYER_S = 1e-3
"""Seconds of a layer's small kernels, forward and backward, each micro-batch; a stage is no faster than that."""
EXCHANGE_S = 2e-4
"""Seconds that a layer waits for one exchange inside a host, whatever its size; between hosts half as long again."""
NVLINK, NETWORK, PCIE = 300e9, 40e9, 50e9
"""Bytes/s of a GPU, each way."""
HBM = 3.0e12
"""Bytes/s that a GPU reads of its own memory."""
CPU_ADAM_RANK, CPU_ADAM_HOST = 1.5e9, 7e9
"""Parameters/s that Adam on the CPU renews, of one rank and of all ranks of a host."""
MEAN_LENGTH = 0.5
"""Mean length of a sequence, as a share of the longest."""
UNEVEN = 0.08
"""How much more the busiest rank's experts get than the mean, for each doubling of the ranks that share them."""
PEER_S = 1e-5
"""Seconds of an exchange of experts' tokens for each rank that takes part."""
BF16 = 2
MOVES = "moves to and from the host"
"""Of a colocated trainer, once a rollout there and back."""


@dataclass(frozen=True)
class Work:
    """What a step has to do.

    Attributes:
        sequences: of all optimizer steps of a rollout.
        tokens: mean of a sequence.
        optimizer_steps: that a rollout is split into.
    """

    sequences: int
    tokens: float
    optimizer_steps: int = 1


def work_of(cfg: SlimeConfig) -> Work:
    """Of one rollout, or of one supervised step."""
    if cfg.algo.name == "sft":
        return Work(cfg.sft.batch_size, MEAN_LENGTH * cfg.train.max_tokens_per_micro_batch)
    longest = longest_of(cfg.rollout, cfg.rollout.sampling)
    sequences = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    return Work(sequences, MEAN_LENGTH * longest, cfg.train.steps_per_rollout)


@dataclass(frozen=True)
class Trained:
    """FLOPs of a model's forward pass.

    Args:
        model: Megatron's keywords with `vocab_size`.
        tokens: mean of a sequence.
    """

    model: Mapping[str, Any]
    weights: Sequence[Weight]
    tokens: float

    @cached_property
    def by_layer(self) -> list[float]:
        """Of a token in each decoder layer, without its routed experts: two a weight that it meets, and attention to
        half of its sequence."""
        met = [0.0] * self.model["num_layers"]
        chooses = set()
        for weight in self.weights:
            if weight.layer is not None and len(weight.shape) > 1 and weight.block is not Block.experts:
                met[weight.layer] += 2 * weight.numel
                if weight.block is Block.indexer:
                    chooses.add(weight.layer)
        return [flops + self._attention(layer in chooses) for layer, flops in enumerate(met)]

    @cached_property
    def of_experts(self) -> dict[int, float]:
        """Of a token in the experts that it is sent to, by layer."""
        found: dict[int, float] = {}
        for weight in self.weights:
            if weight.layer is not None and weight.block is Block.experts:
                share = self.model["moe_router_topk"] / weight.count
                found[weight.layer] = found.get(weight.layer, 0.0) + 2 * weight.numel * share
        return found

    def stage(self, layers: Iterable[int], *, is_last: bool, uneven: float = 1.0) -> float:
        """Of a token in a pipeline stage.

        Args:
            uneven: tokens of the busiest experts' rank relative to the mean.
        """
        flops = sum(self.by_layer[layer] + uneven * self.of_experts.get(layer, 0.0) for layer in layers)
        return flops + self.head * is_last

    def _attention(self, chooses: bool) -> float:
        model, keys = self.model, self.tokens / 2
        heads = model["num_attention_heads"]
        if topk := model.get("dsa_indexer_topk"):
            latent = 2 * model["kv_lora_rank"] + model["qk_pos_emb_head_dim"]
            search = 2 * model["dsa_indexer_n_heads"] * model["dsa_indexer_head_dim"] * keys if chooses else 0
            return float(2 * heads * latent * min(topk, keys) + search)
        if model.get("multi_latent_attention"):
            size = model["qk_head_dim"] + model["qk_pos_emb_head_dim"] + model["v_head_dim"]
            return float(2 * heads * size * keys)
        return float(2 * heads * 2 * model["kv_channels"] * keys)

    @property
    def head(self) -> float:
        return float(2 * self.model["vocab_size"] * self.model["hidden_size"])


@dataclass(frozen=True)
class Layout:
    """What `fit` chooses for the trainers.

    Attributes:
        cap: tokens of a micro-batch of one context-parallel group.
        per_node: GPUs a host.
        deepep: exchanges the experts' tokens, and sends each once a host.
    """

    grid: Grid
    megatron: Mapping[str, Any]
    cap: int
    per_node: int
    cpu_adam: bool
    deepep: bool = False

    @property
    def recomputes(self) -> bool:
        return self.megatron.get("recompute_granularity") == "full"


def training_seconds(work: Work, trained: Trained, layout: Layout, ranks: Sequence[TrainerRank]) -> dict[str, float]:
    """Seconds of training a rollout, by part.

    Args:
        ranks: one of every pipeline stage.
    """
    grid, model = layout.grid, trained.model
    tokens = work.sequences * work.tokens / work.optimizer_steps / grid.dp
    batches = max(1.0, -(-tokens // layout.cap))
    pack = tokens / batches
    split = split_layers(model["num_layers"], grid, layout.megatron)
    stages = [[layer for chunk in chunks for layer in chunk] for chunks in split]
    passes = 4 if layout.recomputes else 3
    uneven = 1 + UNEVEN * math.log2(grid.ep)
    by_stage = [trained.stage(layers, is_last=layers is stages[-1], uneven=uneven) for layers in stages]
    slowest = by_stage.index(max(by_stage))
    forward = by_stage[slowest] * pack / (grid.tp * grid.cp) / MATMUL + LAYER_S / 3 * len(stages[slowest])
    parts = {"compute": batches * 3 * forward, "recomputation": batches * (passes - 3) * forward}
    exchanged = _exchanges(layout, trained, stages[slowest], pack, passes)
    for name, seconds in exchanged.items():
        parts[name] = batches * seconds
    parts["pipeline bubble"] = (grid.pp - 1) * sum(parts.values()) / batches
    shard = pack / (grid.cp * grid.tp) * model["hidden_size"] * BF16
    parts["pipeline sends"] = 2 * (batches + grid.pp - 1) * shard / NETWORK * (grid.pp > 1)
    parts["gradients"] = max(_gradients(layout, rank) for rank in ranks)
    parts["optimizer"] = max(_optimizer(layout, rank) for rank in ranks)
    parts = {name: seconds * work.optimizer_steps for name, seconds in parts.items()}
    moved = max(rank.weights + rank.optimizer for rank in ranks) if ranks[0].colocated else 0.0
    parts[MOVES] = 2 * moved / PCIE
    return {name: seconds for name, seconds in parts.items() if seconds}


def _exchanges(layout: Layout, trained: Trained, layers: Sequence[int], pack: float, passes: int) -> dict[str, float]:
    """Seconds that a stage's layers exchange, of one micro-batch."""
    grid, model, hidden = layout.grid, trained.model, trained.model["hidden_size"] * BF16
    found: dict[str, float] = {}
    of_rank = pack / grid.cp
    if grid.tp > 1:  # two gathers and two scatters a pass; recomputing a layer repeats its gathers
        volume = of_rank * hidden * (grid.tp - 1) / grid.tp
        found["tensor parallel"] = len(layers) * 4 * (passes - 1) * (volume / _rate(layout, grid.tp) + EXCHANGE_S)
    if grid.cp > 1:  # keys and values of the pack in every pass, and their gradients back
        volume = pack * _keys(model, grid) * (grid.cp - 1) / grid.cp
        wait = EXCHANGE_S * (1.5 if grid.tp * grid.cp > layout.per_node else 1)
        found["context parallel"] = len(layers) * passes * (volume / _rate(layout, grid.tp * grid.cp) + wait)
    group = grid.ep * grid.etp
    if group > 1 and (routed := len(trained.of_experts.keys() & set(layers))):
        hosts = max(1, group // layout.per_node)
        copies = min(model["moe_router_topk"], hosts) if layout.deepep else model["moe_router_topk"]
        volume = of_rank / grid.tp * grid.etp * hidden
        inside = volume * model["moe_router_topk"] / hosts / NVLINK
        outside = volume * copies * (hosts - 1) / hosts / NETWORK
        wait = EXCHANGE_S + PEER_S * (group - 1)
        found["expert parallel"] = routed * 2 * (passes - 1) * (inside + outside + wait)
    return found


def _keys(model: Mapping[str, Any], grid: Grid) -> float:
    """Bytes of a token's keys and values that context-parallel ranks exchange."""
    if model.get("dsa_indexer_topk"):
        return float(BF16 * (model["kv_lora_rank"] + model["qk_pos_emb_head_dim"] + model["dsa_indexer_head_dim"]))
    if model.get("multi_latent_attention"):
        size = model["qk_head_dim"] + model["qk_pos_emb_head_dim"] + model["v_head_dim"]
        return float(BF16 * model["num_attention_heads"] / grid.tp * size)
    return float(BF16 * 2 * model["num_query_groups"] / grid.tp * model["kv_channels"])


def _rate(layout: Layout, ranks: int) -> float:
    return NVLINK if ranks <= layout.per_node else NETWORK


def _gradients(layout: Layout, rank: TrainerRank) -> float:
    """fp32 gradients scattered over the replicas, and bf16 weights gathered from them."""
    grid, seconds = layout.grid, 0.0
    for held, replicas in ((rank.held.dense, grid.dp * grid.cp), (rank.held.experts, grid.edp)):
        inside = grid.world_size // grid.pp <= layout.per_node
        seconds += held * (4 + BF16) * (replicas - 1) / replicas / (NVLINK if inside else NETWORK)
    return seconds


def _optimizer(layout: Layout, rank: TrainerRank) -> float:
    if not layout.cpu_adam:
        return 30 * rank.owned / HBM
    ranks = min(layout.per_node, layout.grid.world_size)
    return max(rank.owned / CPU_ADAM_RANK, rank.owned * ranks / CPU_ADAM_HOST) + 6 * rank.owned / PCIE


def generation_seconds(cfg: SlimeConfig, work: Work, rank: EngineRank) -> float | None:
    """Seconds in which the engines of a group write a rollout, if they do all of it; None without a token pool.

    A step of decoding reads the weights and the caches of the running requests, and exchanges twice a layer.
    """
    if not rank.pool_tokens or not rank.sequences:
        return None
    group, model = rank.group, rank.model
    engines, dp = group.num_engines, group.dp
    started = work.sequences * cfg.rollout.over_sampling
    at_once = min(started / engines, dp * rank.pool_tokens / work.tokens, cfg.rollout.max_requests_per_engine)
    of_rank = max(1.0, at_once / dp)
    cache = of_rank * work.tokens / 2 * rank.pool_bytes / rank.pool_tokens
    experts = model.get("num_moe_experts")
    met = min(1.0, at_once * model["moe_router_topk"] / experts) if experts else 1.0
    exchanges = 2 if group.tp > 1 else 0
    wait = (3e-5 if group.devices_per_engine <= cfg.cluster.devices_per_node else 8e-5) * exchanges
    step = (rank.weight_bytes * met + cache) / HBM + model["num_layers"] * (4e-5 + wait)
    drafted = 1.5 if rank.drafts else 1.0
    waves = max(1.0, started / engines / at_once)
    return float(waves * work.tokens * step / drafted)
