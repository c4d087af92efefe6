"""How long a step of a layout takes, part by part: an estimate from sizes alone, to put layouts in order. No torch.

Rates are a share of what the GPU's data sheet promises, and 400 Gb/s a GPU between hosts. The shares are those of H100s
and H200s; `benchmarks/plan_beside_measured.py` holds the sums against runs that were measured. Parts that overlap in a
real run are added up here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.algo.stages import run_stages
from slime.config.gpus import GPU, HOW_TO_NAME, gpu_of
from slime.config.schema import ClusterConfig, EvalConfig, EvalSetConfig, RolloutConfig, SlimeConfig
from slime.engines.limits import longest_of
from slime.errors import SlimeError
from slime.layout import Grid, split_layers
from slime.models.blocks import UNEVEN_EXPERTS
from slime.plan.flops import ForwardFlops
from slime.topology.environment import trains_with_deepep
from slime.types import RL
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.memory.trainer import TrainerRank
from slime_tools.publish.part import LINK, NETWORK

PRODUCTS = 0.65
"""Share of the GPU's promise that matrix products reach (profiles of a dense model and of mixtures of experts)."""
ATTENTION, SHORT = 0.5, 1000
"""The same of attention to many keys, and the tokens of a sequence at which it is half of that: blocks at the diagonal
are computed whole (`benchmarks/results/attention-h200.md`)."""
SMALL, SMALL_EXPERTS = 32, 300
"""Hidden states that the small kernels of a layer read and write for each token, forward and backward; of a layer with
experts, whose tokens are copied to them and back."""
GAPS_S = 9e-4
"""Seconds of a layer and micro-batch, forward and backward, in which kernels end and begin, whatever their size: what
packs of 8,192 tokens take more than those of 32,768."""
LAUNCHES_S = 2.7e-3
"""Seconds in which the host launches the kernels of a layer, forward and backward; no micro-batch is faster."""
LAUNCHED_EXCHANGE_S = 5e-4
"""The same of an exchange of tensor parallelism, with what autograd and NCCL's streams do around it."""
EXCHANGE_S = 1e-4
"""Seconds that a layer waits for one exchange inside a host, whatever its size; between hosts half as long again."""
OPTIMIZER = 38
"""Bytes of a parameter that Adam reads and writes (30), and that its gradient's norm and zeros are."""
TENSOR_EXCHANGES = 4
"""Of a layer: two gathers and two scatters, forward as backward."""
CPU_ADAM_RANK, CPU_ADAM_HOST = 1.5e9, 7e9
"""Parameters/s that Adam on the CPU renews, of one rank and of all ranks of a host."""
MEAN_LENGTH = 0.5
"""Mean length of a sequence, as a share of the longest."""
ALIKE = 1.1
"""Lengths of which the longest is less than that times the mean are taken to be all as long."""
PEER_S = 1e-5
"""Seconds of an exchange of experts' tokens for each rank that takes part."""
HOST_MOVES, SHARING = 120e9, 4
"""Bytes/s, each way, that GPUs move to the host's memory at once, and how many share that: four H200s of a host."""
BF16 = 2
MOVES = "moves to and from the host"
"""Of a colocated trainer, once a rollout there and back."""


@dataclass(frozen=True)
class Rates:
    """What a GPU does in a second.

    Attributes:
        products: FLOP of matrix products in bf16.
        attention: FLOP of attention to many keys.
        memory: bytes that it reads of its own memory.
        link: bytes to another GPU of its host, each way.
        host: bytes to its host's memory, each way.
    """

    products: float
    attention: float
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
            products=PRODUCTS * 1e12 * gpu.bf16_tflops,
            attention=ATTENTION * 1e12 * gpu.bf16_tflops,
            memory=3000 / 3350 * 1e9 * gpu.memory_gb_s,
            link=LINK * 1e9 * gpu.link_gb_s,
            host=50 / 64 * 1e9 * gpu.host_gb_s,
        )


@dataclass(frozen=True)
class Work:
    """What a step has to do.

    Attributes:
        sequences: of all optimizer steps of a rollout.
        tokens: mean of a sequence, prompt and response.
        optimizer_steps: that a rollout is split into, in each epoch.
        log_probs: forward passes for log-probs, of the old policy and of the reference.
        over_sampling: sequences that are begun, relative to those that are trained on.
        epochs: how often each is trained on.
        prompt: tokens of a prompt, in the mean.
        samples_per_prompt: sequences whose prompt an engine computes once.
        most: tokens of the longest response, if it is known; else responses are spread evenly from 0 to twice the mean.
    """

    sequences: int
    tokens: float
    optimizer_steps: int = 1
    log_probs: int = 0
    over_sampling: float = 1.0
    epochs: int = 1
    prompt: float = 0.0
    samples_per_prompt: int = 1
    most: float | None = None

    @property
    def response(self) -> float:
        """Mean tokens of a response."""
        return self.tokens - self.prompt

    @property
    def longest_response(self) -> float:
        return self.most or self.response * 2 * self.sequences / (self.sequences + 1)

    @property
    def are_alike(self) -> bool:
        """Whether a pack holds a whole number of sequences, as none is short enough to fill what they leave."""
        return self.longest < ALIKE * self.tokens

    @property
    def longest(self) -> float:
        """Tokens of the longest sequence, of a prompt as long as the mean one."""
        return self.prompt + self.longest_response


def work_of(cfg: SlimeConfig) -> Work:
    """Work of one rollout, or of one supervised step."""
    if not run_stages(cfg).reinforces:
        return Work(cfg.sft.batch_size, MEAN_LENGTH * cfg.train.max_tokens_per_micro_batch)
    stage, of_all = run_stages(cfg)[RL], cfg.rollout.over_sampling
    passes = {"optimizer_steps": stage.optimizer_steps, "log_probs": stage.num_passes, "epochs": stage.epochs}
    return generated(cfg.rollout, cfg.rollout.prompts_per_step, cfg.rollout, over_sampling=of_all, **passes)


def generated(
    rollout: RolloutConfig, prompts: int, source: RolloutConfig | EvalConfig | EvalSetConfig, **passes: Any
) -> Work:
    """Work of the samples that `source` asks for of that number of prompts."""
    tokens = MEAN_LENGTH * longest_of(rollout, source.sampling)
    prompt = min(MEAN_LENGTH * rollout.max_prompt_tokens, tokens)
    samples = source.samples_per_prompt
    return Work(prompts * samples, tokens, prompt=prompt, samples_per_prompt=samples, **passes)


@dataclass(frozen=True)
class Layout:
    """What `fit` chooses for the trainers.

    Attributes:
        cap: tokens of a micro-batch of one context-parallel group.
        kept: tokens of a micro-batch whose logits the backward pass finds, and does not compute again.
        per_node: GPUs a host.
        rates: of its GPUs.
    """

    grid: Grid
    megatron: Mapping[str, Any]
    cap: int
    kept: int
    per_node: int
    cpu_adam: bool
    rates: Rates

    @classmethod
    def of(cls, plan: MemoryPlan) -> Layout:
        """Of a plan's trainers."""
        cfg, cpu_adam = plan.cfg, bool(plan.cfg.train.optimizer.get("optimizer_cpu_offload"))
        per_node, kept = cfg.cluster.devices_per_node, cfg.train.logprob_chunk_tokens
        return cls(plan.grid, plan.model, plan.tokens, kept, per_node, cpu_adam, Rates.of(cfg.cluster))

    @property
    def deepep(self) -> bool:
        """True if DeepEP exchanges the experts' tokens, and sends each once a host."""
        return trains_with_deepep(self.megatron)

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
    sequences = work.sequences / work.optimizer_steps / grid.dp
    tokens = sequences * work.tokens
    batches = max(1.0, math.ceil(sequences / (layout.cap // work.longest) if work.are_alike else tokens / layout.cap))
    pack = tokens / batches
    split = split_layers(model["num_layers"], grid, layout.megatron)
    stages = [[layer for chunk in chunks for layer in chunk] for chunks in split]
    products = 2 if ranks[0].trains_adapters else 3  # forward, gradients of inputs, and those of weights that learn
    passes = products + layout.recomputes
    by_stage = [_forward(layout, trained, layers, pack) for layers in stages]
    heads = [0.0] * (grid.pp - 1) + [trained.head * pack / (grid.tp * grid.cp) / layout.rates.products]
    slowest = max(range(grid.pp), key=lambda stage: by_stage[stage] + heads[stage])
    layers, head = by_stage[slowest], heads[slowest]
    forward, heads_again = layers + head, max(0.0, 1 - layout.kept / pack) * head
    parts = {
        "compute": batches * products * forward,
        "recomputation": batches * (layout.recomputes * layers + heads_again),
    }
    exchanged = _exchanges(layout, trained, stages[slowest], pack, passes)
    for name, seconds in exchanged.items():
        parts[name] = batches * seconds
    launched = passes * LAUNCHES_S / 3 + TENSOR_EXCHANGES * (passes - 1) * LAUNCHED_EXCHANGE_S * (grid.tp > 1)
    on_device = passes * layers + sum(exchanged.values())
    parts["launches"] = batches * max(0.0, len(stages[slowest]) * launched - on_device)
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
    at_once = HOST_MOVES / min(SHARING, layout.per_node, grid.world_size)
    parts[MOVES] = 2 * max(_moved(rank) for rank in ranks) / min(layout.rates.host, at_once)
    return {name: seconds for name, seconds in parts.items() if seconds}


def _forward(layout: Layout, trained: ForwardFlops, layers: Sequence[int], pack: float) -> float:
    """Seconds in which a micro-batch passes a stage's layers forward."""
    grid, model, rates = layout.grid, trained.model, layout.rates
    uneven = UNEVEN_EXPERTS if grid.ep > 1 else 1.0
    of_layers = trained.products(layers, uneven=uneven) / rates.products
    attention = trained.stage(layers, is_last=False) - trained.products(layers)
    of_layers += attention * (1 + SHORT / trained.tokens) / rates.attention
    passed = sum(SMALL_EXPERTS if layer in trained.of_experts else SMALL for layer in layers) / 3
    of_layers += passed * float(model["hidden_size"]) * BF16 / rates.memory
    return of_layers * pack / (grid.tp * grid.cp) + GAPS_S / 3 * len(layers)


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
    if grid.tp > 1:  # recomputing a layer repeats its gathers
        volume = of_rank * hidden * (grid.tp - 1) / grid.tp
        found["tensor parallel"] = (
            len(layers) * TENSOR_EXCHANGES * (passes - 1) * (volume / _rate(layout, grid.tp) + EXCHANGE_S)
        )
    if grid.cp > 1:  # keys and values of the pack in every pass, and their gradients back
        of_token = sum(block.exchanged(model, grid.tp) for layer in layers for block in trained.blocks[layer])
        volume = pack * of_token * (grid.cp - 1) / grid.cp
        wait = len(layers) * EXCHANGE_S * (1.5 if grid.tp * grid.cp > layout.per_node else 1)
        found["context parallel"] = passes * (volume / _rate(layout, grid.tp * grid.cp) + wait)
    group = grid.ep * grid.etp
    if group > 1 and (routed := len(trained.of_experts.keys() & set(layers))):
        hosts, within = max(1, group // layout.per_node), min(group, layout.per_node)
        copies = min(model["moe_router_topk"], hosts) if layout.deepep else model["moe_router_topk"]
        volume = of_rank / grid.tp * grid.etp * hidden
        inside = volume * model["moe_router_topk"] * (within - 1) / within / hosts / layout.rates.link
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
        return OPTIMIZER * rank.owned / layout.rates.memory
    ranks = min(layout.per_node, layout.grid.world_size)
    return max(rank.owned / CPU_ADAM_RANK, rank.owned * ranks / CPU_ADAM_HOST) + 6 * rank.owned / layout.rates.host
