"""A number of each sampled token, read from SGLang's answers: for plugins with the hook `slime_recordings`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from slime.errors import SlimeError

if TYPE_CHECKING:
    from slime.segments import Rows

NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Told:
    """A `slime.models.traits.Recording` of one number for each token that an engine sampled, 0 for all others.

    Attributes:
        name: of the metric `rollout/<name>`, and of the column.
        request_fields: of SGLang's `/generate`, for an answer that tells it.
        of_answer: from the `meta_info` of an answer to the numbers of its tokens, in their order.
        server_fields: of SGLang's `ServerArgs`, for an engine that can.
        refused: fields of `ServerArgs` that may not be set, and why: ends of a sentence.
    """

    name: str
    request_fields: Mapping[str, Any]
    of_answer: Callable[[Mapping[str, Any]], Iterable[float]]
    server_fields: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    refused: Mapping[str, str] = field(default_factory=lambda: NOTHING)

    megatron_fields = NOTHING
    token_bytes = 4

    def read(self, meta: Mapping[str, Any], tokens: Sequence[int], before: Rows | None = None) -> Rows | None:
        """See `slime.models.traits.Recording`. None where an answer has no token."""
        import numpy as np

        from slime.segments import Rows

        if not (count := len(meta.get("output_token_logprobs") or ())):
            return before
        told = np.fromiter(self.of_answer(meta), np.float32)
        if len(told) != count or not np.isfinite(told).all():
            what = f"of an answer with {count} tokens it read {len(told)} numbers, {np.isfinite(told).sum()} finite"
            raise SlimeError(what, where=f"recording '{self.name}'", todo="Correct its plugin, or uninstall it.")
        numbers = np.zeros(len(tokens), "<f4")
        if before is not None:
            numbers[: before.shape[0]] = np.frombuffer(before.data, "<f4")
        numbers[len(tokens) - count :] = told
        return Rows("<f4", numbers.shape, numbers.tobytes())

    def problems(self, megatron: Mapping[str, Any], sglang: Mapping[str, Any]) -> Iterable[str]:
        """See `slime.models.traits.Recording`."""
        return [why for name, why in self.refused.items() if sglang.get(name)]
