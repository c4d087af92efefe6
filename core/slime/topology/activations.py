"""Bytes that a trainer rank keeps of a token for the backward pass, as the modules of `slime.models.specs` save them.

Held against the peaks of `benchmarks/results/train-h200.md` (dense model); `benchmarks/memory.py` measures the others.
All activations are bf16.

Shape letters: s tokens of a rank's sequence shard, t of its context-parallel rank, T of the pack (t = T / cp,
s = t / tp); n tokens that the experts of a rank get, each of their layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.topology.layout import Grid

Model = Mapping[str, Any]
BF16 = 2
UNEVEN_EXPERTS = 1.25
"""Tokens of the busiest expert-parallel rank relative to the mean."""


@dataclass(frozen=True)
class Layer:
    """Bytes of one layer and micro-batch.

    Attributes:
        inputs: what full recomputation keeps: the layer's input.
        saved: what is kept for the backward pass, the input included.
        transient: more that is alive at the peak of the layer's backward pass: gradients, and inputs gathered again.
        selected: keys that sparse attention chose, which stay until the micro-batch is done, recomputation or not.
    """

    inputs: float
    saved: float
    transient: float
    selected: float = 0.0


class Activations:
    """Of the layers of a model in a layout.

    Args:
        model: Megatron's keywords, the family's under `train.megatron`.
        tokens: T, of a full micro-batch.
        longest: tokens of the longest sequence, which bounds the keys that sparse attention chooses.
    """

    def __init__(self, model: Model, grid: Grid, tokens: int, longest: int) -> None:
        self.model, self.grid = model, grid
        self.pack = tokens
        self.rank_tokens = tokens / grid.cp
        self.shard = self.rank_tokens / grid.tp
        self.topk_keys = min(model.get("dsa_indexer_topk") or 0, longest)
        selective = model.get("recompute_granularity") == "selective"
        self.modules: Sequence[str] = (model.get("recompute_modules") or ["core_attn"]) if selective else ()

    def layer(self, *, has_experts: bool, sandwich: bool = False, chooses: bool = False) -> Layer:
        """One decoder layer.

        Args:
            sandwich: the outputs of attention and MLP have norms of their own.
            chooses: it has an indexer.
        """
        hidden = BF16 * self.model["hidden_size"] * self.shard
        attention, attention_transient = self._attention()
        mlp, mlp_transient = self._experts() if has_experts else self._dense()
        normed = 0 if "layernorm" in self.modules else 2
        saved = (2 + normed + 2 * sandwich) * hidden + attention + mlp
        gathered = 2 * BF16 * self.model["hidden_size"] * self.rank_tokens * (self.grid.tp > 1)
        selected = 4 * self.topk_keys * self.shard if chooses else 0.0
        return Layer(hidden, saved, max(attention_transient, mlp_transient) + gathered, selected)

    def _attention(self) -> tuple[float, float]:
        if self.model.get("dsa_indexer_topk"):
            return self._sparse()
        return self._latent() if self.model.get("multi_latent_attention") else self._grouped()

    def _keys(self) -> float:
        """Keys that a rank attends to: with context parallelism those of the pack up to each of its two pieces."""
        cp = self.grid.cp
        return self.pack * (1 + 1 / (2 * cp)) if cp > 1 else self.rank_tokens

    def _core(self, heads: float, groups: float, size: float, value: float) -> tuple[float, float]:
        """Queries, keys, values, output and log-sum-exp; their gradients, and fp32 sums of the queries' ones.

        Flash attention pads values to the size of keys, and its output with them.
        """
        padded = size if value != size and "core_attn" not in self.modules else value
        query, keys = BF16 * heads * size * self.rank_tokens, BF16 * groups * (size + padded) * self._keys()
        out = BF16 * heads * (value + (padded if padded != value else 0)) * self.rank_tokens
        log_sums = 0 if "core_attn" in self.modules else 4 * heads * self.rank_tokens
        gathered = BF16 * groups * (size + value) * self.pack if self.grid.cp > 1 else 0
        return query + keys + out + log_sums, 2 * query + keys + out + 2 * query + gathered

    def _grouped(self) -> tuple[float, float]:
        """`PackedSelfAttention`; with norms of queries and keys their inputs too."""
        model, tp = self.model, self.grid.tp
        heads, groups, size = model["num_attention_heads"] / tp, model["num_query_groups"] / tp, model["kv_channels"]
        core, transient = self._core(heads, groups, size, size)
        norms = BF16 * (heads + 2 * groups) * size * self.rank_tokens if model.get("qk_layernorm") else 0
        return core + norms, transient

    def _down(self) -> float:
        """Compressed queries and latents, before their norms and behind."""
        latents = 2 * (self.model["q_lora_rank"] or 0) + 2 * int(self.model["kv_lora_rank"]) + self._rotary
        return float(BF16 * self.shard * latents)

    @property
    def _rotary(self) -> int:
        return int(self.model["qk_pos_emb_head_dim"])

    def _latent(self) -> tuple[float, float]:
        """`PackedLatentAttention`: every head has keys and values of its own."""
        model = self.model
        heads = model["num_attention_heads"] / self.grid.tp
        core, transient = self._core(heads, heads, model["qk_head_dim"] + self._rotary, model["v_head_dim"])
        if "mla_up_proj" in self.modules:
            core = BF16 * heads * model["v_head_dim"] * self.rank_tokens
        return self._down() + core, transient

    def _sparse(self) -> tuple[float, float]:
        """`SparseLatentAttention`: queries as long as latents, before and behind the trade of heads for tokens."""
        model, tokens = self.model, self.rank_tokens
        heads = model["num_attention_heads"] / self.grid.tp
        latent = model["kv_lora_rank"] + self._rotary
        traded = 2 if self.grid.tp > 1 else 1
        up = heads * (model["qk_head_dim"] + self._rotary)
        mixed = heads * model["kv_lora_rank"]
        rows = up + heads * latent + traded * mixed + heads * model["v_head_dim"]
        shared = BF16 * latent * self.pack
        saved = self._down() + BF16 * rows * tokens + shared + 4 * heads * tokens
        return saved, BF16 * tokens * 2 * (heads * latent + mixed) + 3 * shared

    def _gate_up(self, size: float, tokens: float) -> tuple[float, float]:
        """[gate | up] and the activation; gradient of the former."""
        return BF16 * 3 * size * tokens, BF16 * 2 * size * tokens

    def _dense(self) -> tuple[float, float]:
        saved, transient = self._gate_up(self.model["ffn_hidden_size"] / self.grid.tp, self.rank_tokens)
        return (0.0 if "mlp" in self.modules else saved), transient + saved * ("mlp" in self.modules)

    @property
    def routed(self) -> float:
        """n, of the busiest rank."""
        model, grid = self.model, self.grid
        uneven = UNEVEN_EXPERTS if grid.ep > 1 else 1.0
        return float(self.shard * model["moe_router_topk"] * grid.etp * uneven)

    def _experts(self) -> tuple[float, float]:
        """Tokens as the experts get them, [gate | up], activation; the shared expert and the router beside.

        The backward pass has gradients of all of it, tokens on their way back, and one of the layer's weights in bf16.
        """
        model, grid = self.model, self.grid
        hidden = BF16 * model["hidden_size"] * self.routed
        saved, transient = self._gate_up(model["moe_ffn_hidden_size"] / grid.etp, self.routed)
        if "moe_act" in self.modules:
            transient, saved = transient + saved / 3, saved * 2 / 3
        router = 4 * 3 * model["num_moe_experts"] * self.shard
        kept, transient = saved + hidden + router, transient + saved / 3 + 2 * hidden
        if size := model.get("moe_shared_expert_intermediate_size"):
            of_shared, _ = self._gate_up(size / grid.tp, self.rank_tokens)
            kept += 0 if "shared_experts" in self.modules else of_shared
        if "moe" in self.modules:
            kept, transient = 0.0, kept + transient
        weights = BF16 * 2 * model["hidden_size"] * model["moe_ffn_hidden_size"] / grid.etp
        return kept, transient + weights * model["num_moe_experts"] / grid.ep

    def head(self, vocab_size: int, chunk_tokens: int, *, tied: bool) -> tuple[float, float]:
        """Behind the last layer: kept (final norm, hidden states gathered), and alive at its own peak in addition
        (logits of a chunk, gradient of the hidden states)."""
        hidden, tp = BF16 * self.model["hidden_size"], self.grid.tp
        kept = hidden * (2 * self.shard + (self.rank_tokens if tp > 1 else 0))
        chunk = min(chunk_tokens, self.rank_tokens)
        logits = BF16 * chunk * vocab_size / tp
        sum_of_tied = 4 * vocab_size / tp * self.model["hidden_size"] if tied else 0
        return kept, hidden * self.rank_tokens + logits + sum_of_tied

    def stage(self, layers: Sequence[Layer], in_flight: float, head: tuple[float, float]) -> float:
        """Bytes at a stage's peak, in the backward pass of a layer or of the head.

        Args:
            in_flight: micro-batches under way.
            head: of `head` on the last stage, otherwise nothing.
        """
        held = sum(layer.selected for layer in layers) * in_flight
        if not layers:
            return held + sum(head)
        if self.model.get("recompute_granularity") != "full":
            held += sum(layer.saved for layer in layers) * in_flight
            return held + max(sum(head), *(layer.transient for layer in layers))
        again, every = layers, self.model.get("recompute_num_layers") or 1
        if self.model.get("recompute_method") == "block":
            again, kept, every = layers[:every], layers[every:], 1
            held += sum(layer.saved for layer in kept) * in_flight
        held += sum(layer.inputs for layer in again[::every]) * in_flight
        live = sum(sorted((layer.saved for layer in again), reverse=True)[:every])
        return held + max(sum(head), live + max(layer.transient for layer in layers))
