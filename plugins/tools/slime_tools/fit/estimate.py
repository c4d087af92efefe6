"""How long a step of a layout takes, part by part: an estimate from sizes alone, to put layouts in order. No torch.

Rates are a share of what the GPU's data sheet promises, and 400 Gb/s a GPU between hosts. The shares are those of H100s
and H200s; a test holds the sum against training that was measured (`benchmarks/results/train-h200.md`). Parts that
overlap in a real run are added up here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.algo.stages import run_stages
from slime.config.gpus import GPU, HOW_TO_NAME, gpu_of
from slime.config.schema import ClusterConfig, SlimeConfig
from slime.engines.limits import longest_of
from slime.errors import SlimeError
from slime.layout import Grid, split_layers
from slime.models.blocks import UNEVEN_EXPERTS
from slime.plan.flops import ForwardFlops
from slime.types import RL
from slime_tools.memory.trainer import TrainerRank
from slime_tools.publish.part import LINK, NETWORK

LAYER_S = 1e-3
"""Seconds of a layer's small kernels, forward and backward, each micro-batch; a stage is no faster than that."""
EXCHANGE_S = 2e-4
"""Seconds that a layer waits for one exchange inside a host, whatever its size; between hosts half as long again."""
CPU_ADAM_RANK, CPU_ADAM_HOST = 1.5e9, 7e9
"""Parameters/s that Adam on the CPU renews, of one rank and of all ranks of a host."""
MEAN_LENGTH = 0.5
"""Mean length of a sequence, as a share of the longest."""
PEER_S = 1e-5
"""Seconds of an exchange of experts' tokens for each rank that takes part."""
BF16 = 2
MOVES = "moves to and from the host"
"""Of a colocated trainer, once a rollout there and back."""


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second.

    Attributes:
        products: FLOP of matrix products in bf16.
        memory: bytes that it reads of its own memory.
        link: bytes to another GPU of its host, each way.
        host: bytes to its host's memory, each way.
    """

    products: float
    memory: float
    link: float
    host: float

    @classmethod
    def of(cls, cluster: ClusterConfig) -> Rates:
        """Of the cluster's GPUs.

        Raises:
            SlimeError: nobody says which these are.
        """
        gpu = gpu_of(cluster)
        if gpu is None:
            raise SlimeError("--fit needs the rates of a GPU", where=GPU, todo=HOW_TO_NAME)
        return cls(
            products=0.55e12 * gpu.bf16_tflops,
            memory=3000 / 3350 * 1e9 * gpu.memory_gb_s,
            link=LINK * 1e9 * gpu.link_gb_s,
            host=50 / 64 * 1e9 * gpu.host_gb_s,
        )


@dataclass(frozen=True)
class Work:
    """What a step has to do.

    Attributes:
        sequences: of all optimizer steps of a rollout.
        tokens: mean of a sequence.
        optimizer_steps: that a rollout is split into, in each epoch.
        log_probs: forward passes for log-probs, of the old policy and of the reference.
        over_sampling: sequences that are begun, relative to those that are trained on.
        epochs: how often each is trained on.
    """

    sequences: int
    tokens: float
    optimizer_steps: int = 1
    log_probs: int = 0
    over_sampling: float = 1.0
    epochs: int = 1

    @property
    def longest(self) -> float:
        """Tokens of the longest sequence: lengths are taken to be spread evenly between 0 and twice their mean."""
        return 2 * self.tokens * self.sequences / (self.sequences + 1)


def work_of(cfg: SlimeConfig) -> Work:
    """Work of one rollout, or of one supervised step."""
    if not run_stages(cfg).reinforces:
        return Work(cfg.sft.batch_size, MEAN_LENGTH * cfg.train.max_tokens_per_micro_batch)
    longest = longest_of(cfg.rollout, cfg.rollout.sampling)
    sequences = cfg.rollout.prompts_per_step * cfg.rollout.samples_per_prompt
    stage, of_all = run_stages(cfg)[RL], cfg.rollout.over_sampling
    return Work(sequences, MEAN_LENGTH * longest, stage.optimizer_steps, stage.num_passes, of_all, stage.epochs)


@dataclass(frozen=True)
class Layout:
    """What `fit` chooses for the trainers.

    Attributes:
        cap: tokens of a micro-batch of one context-parallel group.
        per_node: GPUs a host.
        rates: of its GPUs.
        deepep: exchanges the experts' tokens, and sends each once a host.
    """

    grid: Grid
    megatron: Mapping[str, Any]
    cap: int
    per_node: int
    cpu_adam: bool
    rates: Rates
    deepep: bool = False

    @property
    def recomputes(self) -> bool:
        return self.megatron.get("recompute_granularity") == "full"


def training_seconds(
    work: Work, trained: ForwardFlops, layout: Layout, ranks: Sequence[TrainerRank]
) -> dict[str, float]:
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
    products = 2 if ranks[0].trains_adapters else 3  # forward, gradients of inputs, and those of weights that learn
    passes = products + layout.recomputes
    uneven = UNEVEN_EXPERTS if grid.ep > 1 else 1.0
    by_stage = [trained.stage(layers, is_last=layers is stages[-1], uneven=uneven) for layers in stages]
    slowest = by_stage.index(max(by_stage))
    forward = by_stage[slowest] * pack / (grid.tp * grid.cp) / layout.rates.products + LAYER_S / 3 * len(
        stages[slowest]
    )
    parts = {"compute": batches * products * forward, "recomputation": batches * layout.recomputes * forward}
    exchanged = _exchanges(layout, trained, stages[slowest], pack, passes)
    for name, seconds in exchanged.items():
        parts[name] = batches * seconds
    parts["log-probs"] = work.log_probs * batches * (forward + sum(exchanged.values()) / passes)
    parts["pipeline bubble"] = (grid.pp - 1) * sum(parts.values()) / batches
    shard = pack / (grid.cp * grid.tp) * model["hidden_size"] * BF16
    parts["pipeline sends"] = 2 * (batches + grid.pp - 1) * shard / NETWORK * (grid.pp > 1)
    parts["gradients"] = max(_gradients(layout, rank) for rank in ranks)
    parts["optimizer"] = max(_optimizer(layout, rank) for rank in ranks)
    if ranks[0].critic:  # trained as the policy is, behind a pass for its values
        again = sum(seconds for name, seconds in parts.items() if name != "log-probs")
        parts["critic"] = again + batches * (forward + sum(exchanged.values()) / passes)
    steps = work.optimizer_steps * work.epochs
    parts = {name: seconds * steps / (work.epochs if name == "log-probs" else 1) for name, seconds in parts.items()}
    parts[MOVES] = 2 * max(_moved(rank) for rank in ranks) / layout.rates.host
    return {name: seconds for name, seconds in parts.items() if seconds}


def _moved(rank: TrainerRank) -> float:
    """Bytes that go to the host and come back: for the engines' turn, and for that of policy and critic."""
    policy, critic = rank.weights + rank.optimizer, rank.critic_state
    beside = policy + (0.0 if rank.critic_takes_turns else critic)
    return (beside if rank.takes_turns else 0.0) + (policy + critic if rank.critic_takes_turns else 0.0)


def _exchanges(
    layout: Layout, trained: ForwardFlops, layers: Sequence[int], pack: float, passes: int
) -> dict[str, float]:
    """Seconds that a stage's layers exchange, of one micro-batch."""
    grid, model, hidden = layout.grid, trained.model, trained.model["hidden_size"] * BF16
    found: dict[str, float] = {}
    of_rank = pack / grid.cp
    if grid.tp > 1:  # two gathers and two scatters a pass; recomputing a layer repeats its gathers
        volume = of_rank * hidden * (grid.tp - 1) / grid.tp
        found["tensor parallel"] = len(layers) * 4 * (passes - 1) * (volume / _rate(layout, grid.tp) + EXCHANGE_S)
    if grid.cp > 1:  # keys and values of the pack in every pass, and their gradients back
        of_token = sum(block.exchanged(model, grid.tp) for layer in layers for block in trained.blocks[layer])
        volume = pack * of_token * (grid.cp - 1) / grid.cp
        wait = len(layers) * EXCHANGE_S * (1.5 if grid.tp * grid.cp > layout.per_node else 1)
        found["context parallel"] = passes * (volume / _rate(layout, grid.tp * grid.cp) + wait)
    group = grid.ep * grid.etp
    if group > 1 and (routed := len(trained.of_experts.keys() & set(layers))):
        hosts = max(1, group // layout.per_node)
        copies = min(model["moe_router_topk"], hosts) if layout.deepep else model["moe_router_topk"]
        volume = of_rank / grid.tp * grid.etp * hidden
        inside = volume * model["moe_router_topk"] / hosts / layout.rates.link
        outside = volume * copies * (hosts - 1) / hosts / NETWORK
        wait = EXCHANGE_S + PEER_S * (group - 1)
        found["expert parallel"] = routed * 2 * (passes - 1) * (inside + outside + wait)
    return found


def _rate(layout: Layout, ranks: int) -> float:
    return layout.rates.link if ranks <= layout.per_node else NETWORK


def _gradients(layout: Layout, rank: TrainerRank) -> float:
    """fp32 gradients scattered over the replicas, and bf16 weights gathered from them."""
    grid, seconds = layout.grid, 0.0
    for held, replicas in ((rank.held.dense, grid.dp * grid.cp), (rank.held.experts, grid.edp)):
        inside = grid.world_size // grid.pp <= layout.per_node
        seconds += held * (4 + BF16) * (replicas - 1) / replicas / (layout.rates.link if inside else NETWORK)
    return seconds


def _optimizer(layout: Layout, rank: TrainerRank) -> float:
    if not layout.cpu_adam:
        return 30 * rank.owned / layout.rates.memory
    ranks = min(layout.per_node, layout.grid.world_size)
    return max(rank.owned / CPU_ADAM_RANK, rank.owned * ranks / CPU_ADAM_HOST) + 6 * rank.owned / layout.rates.host
