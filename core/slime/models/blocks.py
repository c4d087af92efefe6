"""What a building block states of itself: the shapes of its parameters, and what it costs. No torch.

A block's rules carry it (`BuildingBlock.state`), so the weight mapping of a model says which blocks each layer has, and
whoever sums over them (`slime.sizes`, `slime.plan.flops`) names none. All activations are bf16.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol, Self, TypeVar

from slime.layout import Grid
from slime.models.shapes import Model, Shape

BF16 = 2
KEYS_A_ROW = 4
"""Keys that attention reads in a micro-batch whose samples share prompts, at most and relative to its rows: each sample
has the keys of its whole prompt (`slime.train.bins`)."""
UNEVEN_EXPERTS = 1.25
"""Tokens of the busiest expert-parallel rank relative to the mean."""


class Saved(NamedTuple):
    """Bytes that a block of one layer keeps of a micro-batch.

    Attributes:
        kept: for the backward pass.
        transient: more that is alive at the peak of the block's backward pass.
        lasting: until the micro-batch is done, recomputation or not.
    """

    kept: float
    transient: float = 0.0
    lasting: float = 0.0


class Cache(NamedTuple):
    """Bytes of a token that a block of one layer takes in an engine's pool.

    Attributes:
        sized: by which SGLang computes how many tokens fit.
        allocated: that SGLang then allocates.
        unreleased: of these, what SGLang keeps while an engine has given up its memory.
    """

    sized: float
    allocated: float
    unreleased: float = 0.0


class Attention(NamedTuple):
    """What queries and keys cost: scores, and sums of values.

    Attributes:
        flops: of one query with one key.
        most_keys: that a query meets, of those up to its own: a sliding window's, or those chosen for it.
    """

    flops: float
    most_keys: float = math.inf

    def keys(self, tokens: float) -> float:
        """That a query of a sequence meets in the mean: half of its tokens, if all may be met."""
        met = min(tokens, self.most_keys)
        return met - met * met / (2 * tokens) if tokens else 0.0


@dataclass(frozen=True)
class RankTokens:
    """The tokens of a micro-batch on one trainer rank.

    Shape letters: s tokens of a rank's sequence shard, t of its context-parallel rank, T of the pack (t = T / cp,
    s = t / tp).

    Attributes:
        model: Megatron's keywords, the family's under `train.megatron`.
        pack: T, of a full micro-batch.
        longest: tokens of the longest sequence.
        keys_a_row: where samples share prompts, keys relative to the rows of a micro-batch.
    """

    model: Model
    grid: Grid
    pack: int
    longest: int
    keys_a_row: float = 1.0

    @cached_property
    def rank_tokens(self) -> float:
        """t."""
        return self.pack / self.grid.cp

    @cached_property
    def shard(self) -> float:
        """s."""
        return self.rank_tokens / self.grid.tp

    @cached_property
    def recomputed(self) -> Sequence[str]:
        """The modules that selective recomputation computes again."""
        selective = self.model.get("recompute_granularity") == "selective"
        return (self.model.get("recompute_modules") or ["core_attn"]) if selective else ()

    @property
    def keys(self) -> float:
        """Keys that a rank attends to: with context parallelism those of the pack up to each of its two pieces."""
        cp = self.grid.cp
        return self.pack * (1 + 1 / (2 * cp)) if cp > 1 else self.rank_tokens * self.keys_a_row

    def full_attention(self, heads: float, groups: float, size: float, value: float) -> Saved:
        """Queries, keys, values, output and log-sum-exp; their gradients, and fp32 sums of the queries' ones.

        Flash attention pads values to the size of keys, and its output with them.

        Args:
            heads: of queries, on this rank; `groups` those of keys and values.
            size: of a head's keys; `value` that of its values.
        """
        padded = size if value != size and "core_attn" not in self.recomputed else value
        query, keys = BF16 * heads * size * self.rank_tokens, BF16 * groups * (size + padded) * self.keys
        out = BF16 * heads * (value + (padded if padded != value else 0)) * self.rank_tokens
        log_sums = 0 if "core_attn" in self.recomputed else 4 * heads * self.rank_tokens
        gathered = BF16 * groups * (size + value) * self.pack if self.grid.cp > 1 else 0
        return Saved(query + keys + out + log_sums, 2 * query + keys + out + 2 * query + gathered)


class Statement(Protocol):
    """What belongs to a block: a rule of a weight mapping (`slime.models.mapping.Rule`)."""

    def of(self, block: BuildingBlock) -> Self:
        """The same, of this block."""


S = TypeVar("S", bound=Statement)


class BuildingBlock:
    """One block. What a subclass does not override costs nothing.

    Args:
        shapes: of its parameters, by Megatron's names: from inside a layer, or whole outside of layers.

    Attributes:
        page: tokens of a page of an engine's cache. Above 1 engines take no other.
        cache_dtypes: values of `kv_cache_dtype` that engines take; None: all.
    """

    page = 1
    cache_dtypes: Sequence[str] | None = None

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.shapes = shapes

    def state(self, *rules: S) -> tuple[S, ...]:
        """The rules, as those of this block."""
        return tuple(rule.of(self) for rule in rules)

    def saved(self, tokens: RankTokens) -> Saved:
        """In one layer of a trainer rank."""
        return Saved(0.0)

    def attention(self, model: Model, layer: int) -> Attention | None:
        """In one decoder layer, counted from 0; None: no query meets a key in this block."""
        return None

    def exchanged(self, model: Model, tp: int) -> float:
        """Bytes of a token that context-parallel ranks exchange in one layer."""
        return 0.0

    def cache(self, model: Model, attention_tp: int, *, fp8: bool) -> Cache:
        """Bytes on a rank of an engine that shares its attention over `attention_tp` ranks; `fp8`: the pool is in
        FP8."""
        return Cache(0.0, 0.0)
