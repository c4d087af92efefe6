"""The tokens that an engine drew from, where `rollout.sampling.top_k` or `top_p` leave some out. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError
from slime.types import KEPT_TOKENS

if TYPE_CHECKING:
    from slime.segments import Rows

MOST_KEPT = 1024
"""Of `rollout.sampling.top_k` in training: what engines answer and trainers hold of every token."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class KeptTokens:
    """A `slime.models.traits.Recording` of a column of samples (`slime.types.KEPT_TOKENS`). The trainer computes
    log-probs of the same tokens renormalised (arXiv 2512.02556, "keep sampling mask"). SGLang 0.5.16 tells them of
    requests with a finite top-k, from the very probabilities that it drew by; of drafted tokens it does not.

    Attributes:
        top_k: largest number of tokens that SGLang keeps; the drawn one may come on top.
    """

    top_k: int

    name = KEPT_TOKENS
    server_fields = megatron_fields = _NOTHING
    request_fields = MappingProxyType({"return_sampling_mask": True})

    @property
    def token_bytes(self) -> int:
        return 4 * (self.top_k + 1)

    def read(self, meta: Mapping[str, Any], tokens: Sequence[int], before: Rows | None = None) -> Rows | None:
        """See `slime.models.traits.Recording`; a row for each token that could be drawn in its place."""
        import numpy as np

        from slime.segments import Rows

        if not (count := len(meta.get("output_token_logprobs") or ())):
            return before
        kept, drawn = meta.get("output_token_sampling_mask") or (), tokens[len(tokens) - count :]
        if len(kept) != count or not all(ids and token in ids for ids, token in zip(kept, drawn, strict=True)):
            what = f"an answer of {count} tokens does not say from which tokens each was drawn"
            raise SlimeError(what, where="rollout.sampling.top_k", todo="Set it to -1, and top_p to 1.")
        rows = np.zeros((len(tokens), self.top_k + 1), "<i4")
        if before is not None:
            rows[: before.shape[0]] = np.frombuffer(before.data, "<i4").reshape(before.shape)
        for row, ids in zip(rows[len(tokens) - count :], kept, strict=True):
            row[: len(ids)] = np.asarray(ids) + 1
        return Rows("<i4", rows.shape, rows.tobytes())

    def problems(self, megatron: Mapping[str, Any], sglang: Mapping[str, Any]) -> Iterable[str]:
        """See `slime.models.traits.Recording`."""
        if sglang.get("speculative_algorithm"):
            yield "engines do not tell from which tokens a drafted one was drawn"
