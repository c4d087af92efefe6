"""Routing replay: the experts that engines chose for each token, as they tell them. No torch, and no
NumPy before an answer is read: a plan does without.

Engines tell of the experts of every token but the last, whose row nobody computes: SGLang notes them by the place of a
token in its cache, so those of a cached prompt are there as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError

if TYPE_CHECKING:
    import numpy as np

    from slime.segments import Rows

ROUTED_EXPERTS = "routed_experts"
REPLAYED, DIFFERS = "routing_replayed_share", "routing_differs_share"
"""Metrics: of the tokens, those whose experts are replayed; of all choices, those that the router would make
otherwise. Means over the layers with experts."""
STALE_RUN, STALE_LAYERS = 8, 8
"""Tokens one after the other, not all alike, that hardly ever have the same experts in as many layers or more: an
engine has noted nothing new for them."""


@dataclass(frozen=True)
class RoutedExperts:
    """A `slime.models.traits.Recording`: rows of [layers with experts, experts a token].

    Attributes:
        layers: with experts, counted from 0.
        num_layers: of the model.
        num_experts: of a layer, those that all tokens share left out.
        topk: experts of a token.
    """

    layers: tuple[int, ...]
    num_layers: int
    num_experts: int
    topk: int

    name = ROUTED_EXPERTS
    server_fields = MappingProxyType({"enable_return_routed_experts": True})
    request_fields = MappingProxyType({"return_routed_experts": True})
    megatron_fields = MappingProxyType({"moe_enable_routing_replay": True})

    @classmethod
    def of(cls, model: Mapping[str, Any]) -> RoutedExperts:
        """Of a mixture of experts, by its keywords of Megatron's config."""
        frequency, num_layers = model["moe_layer_freq"], model["num_layers"]
        if isinstance(frequency, int):
            layers = tuple(range(0, num_layers, frequency))
        else:
            layers = tuple(layer for layer, has_experts in enumerate(frequency[:num_layers]) if has_experts)
        return cls(layers, num_layers, model["num_moe_experts"], model["moe_router_topk"])

    @property
    def dtype(self) -> str:
        """The smallest that holds an expert's number."""
        return "<u1" if self.num_experts <= 256 else "<u2"

    @property
    def token_bytes(self) -> int:
        """Engines note nothing else (`slime_sglang.engine.routed`)."""
        return len(self.layers) * self.topk * int(self.dtype[-1])

    def read(self, meta: Mapping[str, Any], tokens: Sequence[int], before: Rows | None = None) -> Rows | None:
        """See `slime.models.traits.Recording`. A row is of use where every layer has as many different experts as a
        token gets, and where it is not the end of a long run of equal rows. An answer speaks of all tokens before it
        too: rows of two answers, under other weights, are never mixed."""
        told: bytes | None = meta.get(ROUTED_EXPERTS)
        if told is None:
            return None
        import numpy as np

        from slime.segments import Rows

        rows = self._rows(told, len(tokens) - 1)
        by_place = np.ascontiguousarray(np.moveaxis(rows, -1, 0))
        bad = by_place.max(axis=0) >= self.num_experts
        for one, other in combinations(by_place, 2):
            bad |= one == other
        useless = bad.any(axis=-1) | self._stale(rows, np.asarray(tokens[: len(rows)]))
        if useless.any():
            rows = np.where(useless[:, None, None], rows.dtype.type(0), rows)
            told = rows.tobytes()
        return Rows(self.dtype, rows.shape, told)

    def _rows(self, told: bytes, num_rows: int) -> np.ndarray:
        """[num_rows, layers with experts, topk]."""
        import numpy as np

        if len(told) != num_rows * self.token_bytes:
            of_layers = f"{len(self.layers)} layers with {self.topk} experts"
            raise SlimeError(
                f"an engine told of experts in {len(told):,} bytes, where {num_rows} tokens of {of_layers} take "
                f"{num_rows * self.token_bytes:,}",
                where="train.routing_replay",
                todo="Set it to false; the engines serve another model, or an SGLang other than 0.5.16.",
            )
        return np.frombuffer(told, self.dtype).reshape(num_rows, len(self.layers), self.topk)

    def _stale(self, rows: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """[num_rows] bool: what follows the first row of a run of equal ones."""
        import numpy as np

        stale = np.zeros(len(rows), bool)
        if len(self.layers) < STALE_LAYERS or len(rows) < STALE_RUN:
            return stale
        repeats = np.concatenate([[False], (rows[1:] == rows[:-1]).all(axis=(1, 2))])
        starts = np.flatnonzero(~repeats)
        for start, end in zip(starts, [*starts[1:], len(rows)], strict=True):
            if end - start >= STALE_RUN and len(np.unique(tokens[start:end])) > 1:
                stale[start + 1 : end] = True
        return stale

    def problems(self, megatron: Mapping[str, Any], sglang: Mapping[str, Any]) -> Iterable[str]:
        """See `slime.models.traits.Recording`."""
        if self.topk < 2:
            yield "one expert a token cannot be told from none that was recorded"
        if sglang.get("speculative_algorithm"):
            yield "SGLang may lose or misplace what drafted tokens choose (rollout.sglang.speculative_algorithm)"
        if sglang.get("enable_hierarchical_cache"):
            yield "what comes back from host memory has lost its experts (rollout.sglang.enable_hierarchical_cache)"
