"""What a rank of an SGLang 0.5.16 engine holds on its device: weights, token pool, graphs, buffers. No torch.

Weights are shared out by SGLang's rules, which are not Megatron's: attention over its own tensor parallelism, experts
over `ep_size`, dense MLPs by `moe_dense_tp_size`. The pool takes what `mem_fraction_static` leaves of the memory that
was free when the engine began (`pool_configurator.py`, `kv_cache_configurator.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from slime.config.fp8 import BLOCK
from slime.config.schema import Role, SlimeConfig
from slime.models.shapes import Block, Cut, Model
from slime.topology.engines import EngineGroup
from slime.topology.memory import DEEPEP, GIB, HANDOVER, TRAINING, Phase, Table
from slime.topology.parameters import Weight
from slime.topology.server_fields import (
    dispatch_tokens,
    drafts_with_own_layer,
    num_draft_tokens,
    requests_per_rank,
    uses_deepep,
)

CONTEXT = 0.9 * GIB
"""CUDA context and kernels of an engine rank, on an H200."""
NCCL = 0.6 * GIB
"""Communicators of an engine of several ranks."""
MIB = 2**20
GRAPH_BYTES = 2 * MIB
"""Of CUDA graphs, a request of the largest batch: what SGLang itself reserves, and what an H200 showed."""
FP8_BYTES = 1 + 4 / BLOCK**2
"""Of a parameter in FP8, with its part of its block's fp32 scale."""
INDEX_HEAD = 132
"""Bytes of a token and layer that sparse attention's index keys take: 128 in FP8 and a scale."""
FP8_LATENT = 656
"""Bytes of a token and layer of latents in FP8 as FlashMLA stores them, where the pool is sized with one an entry."""

_UNQUANTIZED = ("wk.weight", "weights_proj.weight", "eh_proj.weight")


def in_fp8_blocks(cfg: SlimeConfig, weight: Weight) -> bool:
    """Whether engines hold a weight in FP8."""
    plain = weight.block in (Block.embedding, Block.output, Block.norm, Block.router) or len(weight.shape) == 1
    return cfg.rollout.fp8 is not None and not plain and not weight.name.endswith(_UNQUANTIZED)


@dataclass(frozen=True)
class EngineRank:
    """One rank of an engine of `group`.

    Attributes:
        model: Megatron's keywords of the model, with `vocab_size`.
        longest: tokens of the longest sequence.
        device_bytes: of its device; None if not known, and then neither is the pool.
    """

    cfg: SlimeConfig
    group: EngineGroup
    model: Model
    weights: Sequence[Weight]
    longest: int
    device_bytes: float | None
    colocated: bool = False

    def get(self, key: str, default: Any = None) -> Any:
        return self.group.sglang.get(key, default)

    @property
    def drafts(self) -> bool:
        return drafts_with_own_layer(self.group.sglang)

    @property
    def num_layers(self) -> int:
        return int(self.model["num_layers"])

    def share(self, weight: Weight) -> float:
        """Parameters that this rank holds of a weight."""
        if weight.block is Block.experts:
            ep = self.group.ep
            experts = (weight.count + (self.get("ep_num_redundant_experts") or 0)) / ep
            return weight.numel / weight.count * experts / (self.group.tp / ep)
        if weight.cut is Cut.whole or weight.block is Block.projection:
            return weight.numel
        if weight.block is Block.mlp:
            return weight.numel / (self.get("moe_dense_tp_size") or self.group.tp)
        if weight.block is Block.shared:
            return weight.numel / (1 if self.group.spreads_experts else self.group.tp)
        if weight.block is Block.output:
            return weight.numel / (self.group.attention_tp if self.get("enable_dp_lm_head") else self.group.tp)
        if weight.name.startswith("self_attention.linear_qkv"):
            return self._grouped(weight)
        return weight.numel / self.group.attention_tp

    def _grouped(self, weight: Weight) -> float:
        """A key/value head lies on every rank whose queries it serves."""
        heads, groups, tp = self.model["num_attention_heads"], self.model["num_query_groups"], self.group.attention_tp
        return float(weight.numel / (heads + 2 * groups) * (heads / tp + 2 * max(1, groups / tp)))

    def bytes_of(self, weight: Weight) -> float:
        """2 a parameter; under `rollout.fp8` 1, with an fp32 scale for each block, of the matrices inside layers."""
        return (FP8_BYTES if in_fp8_blocks(self.cfg, weight) else 2) * self.share(weight)

    @cached_property
    def weight_bytes(self) -> float:
        """Of the model, and of its prediction layer where the engine drafts; absorbed up projections in bf16 beside."""
        held = [weight for weight in self.weights if self.drafts or not weight.drafts]
        absorbed = [weight for weight in held if weight.name == "self_attention.linear_kv_up_proj.weight"]
        return sum(map(self.bytes_of, held)) + sum(2 * self.share(weight) for weight in absorbed)

    @property
    def sparse(self) -> bool:
        return bool(self.model.get("dsa_indexer_topk"))

    def _cells(self) -> tuple[float, float]:
        """Bytes of a token and layer: as SGLang sizes the pool, and as it then allocates it."""
        fp8 = str(self.get("kv_cache_dtype", "auto")).startswith("fp8")
        if not self.model.get("multi_latent_attention"):
            heads = max(1.0, self.model["num_query_groups"] / self.group.attention_tp)
            cell = heads * 2 * self.model["kv_channels"] * (1 if fp8 else 2)
            return cell, cell
        latent = (self.model["kv_lora_rank"] + self.model["qk_pos_emb_head_dim"]) * (1 if fp8 else 2)
        if not self.sparse:
            return latent, latent
        return latent + INDEX_HEAD, (FP8_LATENT if fp8 else latent) + INDEX_HEAD

    @property
    def _pool_layers(self) -> float:
        """Layers with a pool, the drafting one included."""
        return self.num_layers + self.drafts

    @property
    def context(self) -> float:
        return CONTEXT + NCCL * (self.group.tp > 1)

    @property
    def fraction(self) -> float | None:
        """`mem_fraction_static`, or SGLang's own from a device's memory (`server_args.py`); in MiB it keeps back
        512 + 1.5 chunked prefill + 128 tp + graphs, on cards over 60 GB at least 10 GiB."""
        given: float | None = self.get("mem_fraction_static")
        if given is not None or self.device_bytes is None:
            return given
        graphs = 2 * self.largest_batch + (3 * self.largest_batch * self.group.dp if self.group.dp > 1 else 0)
        kept = 512 + 1.5 * max(self.get("chunked_prefill_size", 8192), 2048) + 128 * self.group.tp + graphs
        if self.device_bytes > 60e9:
            kept = max(kept, 10 * 1024)
        kept += 2048 * uses_deepep(self.group.sglang)
        return float(round(1 - kept * MIB / self.device_bytes, 3))

    @cached_property
    def pool_tokens(self) -> int | None:
        """Tokens of one data-parallel rank: (fraction x memory free at start - weights) / bytes a token, in pages; at
        most `max_total_tokens`. None if the device's memory is not known."""
        limit: int | None = self.get("max_total_tokens")
        fraction = self.fraction
        if self.device_bytes is None or fraction is None:
            return limit
        room = fraction * (self.device_bytes - self.context) - self.weight_bytes
        page = self.get("page_size") or (64 if self.sparse else 1)
        tokens = int(max(room, 0) / (self._cells()[0] * self._pool_layers)) // page * page
        return min(tokens, limit) if limit else tokens

    @property
    def pool_bytes(self) -> float:
        return (self.pool_tokens or 0) * self._cells()[1] * self._pool_layers

    @property
    def index_bytes(self) -> float:
        """Index keys of sparse attention, which SGLang does not release."""
        return (self.pool_tokens or 0) * INDEX_HEAD * self._pool_layers if self.sparse else 0.0

    @property
    def sequences(self) -> int | None:
        """Of the longest length that the whole engine's pools hold at once; at most `max_running_requests`."""
        if self.pool_tokens is None:
            return None
        fit = self.pool_tokens // self.longest * self.group.dp
        running = self.get("max_running_requests")
        return min(fit, running) if running else fit

    @property
    def largest_batch(self) -> int:
        return requests_per_rank(self.cfg, self.group)

    @property
    def graphs(self) -> float:
        """2 MiB a request of the largest batch, once for the model and once for each drafted token; prefill engines
        decode nothing."""
        if self.group.role is Role.prefill:
            return 0.0
        return GRAPH_BYTES * self.largest_batch * num_draft_tokens(self.group.sglang)

    @property
    def deepep(self) -> float:
        """Low latency: 4 x experts x T x (2 H + 4 H / 128) for T dispatch tokens; the normal kernels' beside, unless
        the mode is one of the two alone."""
        if not uses_deepep(self.group.sglang):
            return 0.0
        mode, hidden = self.get("deepep_mode", "auto"), self.model["hidden_size"]
        tokens = dispatch_tokens(self.cfg, self.group)
        low = 4 * self.model["num_moe_experts"] * tokens * (2 * hidden + 4 * hidden / BLOCK)
        return float(low * (mode != "normal") + DEEPEP * (mode != "low_latency"))

    @property
    def workspace(self) -> float:
        """Activations of a chunk of prompts (four hidden states, one MLP), and two fp32 copies of a batch's logits."""
        model = self.model
        tokens = self.get("chunked_prefill_size", 8192) / self.group.dp
        width = model["ffn_hidden_size"] / (self.get("moe_dense_tp_size") or self.group.tp)
        if model.get("num_moe_experts"):
            width = max(width, model["moe_router_topk"] * model["moe_ffn_hidden_size"] / self.group.tp * self.group.dp)
        vocabulary = model["vocab_size"]
        return float(2 * tokens * (4 * model["hidden_size"] + 3 * width) + 8 * self.largest_batch * vocabulary)

    def on_device(self, *, bucket: float) -> Table:
        """By phase.

        Args:
            bucket: bytes of weights that arrive at once over a process group of trainers and engines, 0 through shared
                memory.
        """
        table = Table()
        others = [Phase.start, Phase.generate]
        always = [*others, *(TRAINING if self.colocated else [Phase.publish])]
        table.add("engine's weights", self.weight_bytes, [*others, *(HANDOVER if self.colocated else [Phase.publish])])
        released = self.index_bytes if self.colocated else self.pool_bytes
        table.add("KV cache", self.pool_bytes, others)
        table.add("KV cache", released, [phase for phase in always if phase not in others])
        table.add("prefill and logits", self.workspace, [Phase.generate])
        table.add("CUDA graphs", self.graphs, always)
        table.add("DeepEP buffers", self.deepep, always)
        table.add("arriving weights", (1 + self.cfg.weights.num_sources) * bucket, [Phase.publish])
        table.add("engine's CUDA, NCCL", self.context, always)
        return table
