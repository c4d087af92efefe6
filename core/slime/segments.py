"""Segments: the exact sequences of tokens that an attempt is trained on. Plain dataclasses, as in `slime.types`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

SPANS = "slime_spans"
"""In the `meta_info` of an engine's answer to a request that lasted while weights changed: of the versions before the
last one, lists of (version, tokens), and nulls."""


@dataclass(frozen=True)
class WeightSpan:
    """Consecutive tokens that were sampled under one version of the weights."""

    version: int | None  # None: nobody sampled them, a program wrote them
    num_tokens: int
    is_mixed: bool = False  # on keys and values of older weights, so that the version alone gives other log-probs


@dataclass(frozen=True)
class Rows:
    """Recordings of engines, a row for each of the first tokens of a sequence (`slime.models.traits.Recording`)."""

    dtype: str  # as NumPy names it
    shape: tuple[int, ...]  # number of rows, and the shape of one
    data: bytes

    def first(self, count: int) -> Rows:
        """At most `count` rows."""
        if count >= self.shape[0]:
            return self
        size = len(self.data) // self.shape[0]
        return replace(self, shape=(count, *self.shape[1:]), data=self.data[: count * size])


@dataclass
class Segment:
    """One exact sequence of tokens of an attempt, which is trained as one.

    Each token after the context has a log-prob, the natural logarithm under the engine's sampling distribution
    softmax(logits / temperature), 0 where nobody sampled; and a mask, 1 where the model sampled. A sampled token is in
    one segment of its attempt. `spans` add up to these tokens.
    """

    context: tuple[int, ...]  # tokens without loss: the prompt, or what another segment of the attempt trains
    tokens: list[int] = field(default_factory=list)  # sampled by the model, and written by a program in between
    logprobs: list[float] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    spans: list[WeightSpan] = field(default_factory=list)
    recorded: dict[str, Rows] = field(default_factory=dict)  # by name, of the context's tokens and those after it

    def write(self, tokens: Sequence[int]) -> None:
        """Add tokens that nobody sampled."""
        self.tokens += tokens
        self.logprobs += [0.0] * len(tokens)
        self.loss_mask += [0] * len(tokens)
        if tokens:
            self.spans.append(WeightSpan(None, len(tokens)))

    def cut(self, count: int) -> None:
        """Keep the first `count` tokens after the context."""
        del self.tokens[count:], self.logprobs[count:], self.loss_mask[count:]
        spans, self.spans = self.spans, []
        for span in spans:
            if (kept := min(span.num_tokens, count)) > 0:
                self.spans.append(replace(span, num_tokens=kept))
            count -= kept
        self.cut_rows()

    def cut_rows(self) -> None:
        """Drop rows of tokens that are cut off."""
        count = len(self.context) + len(self.tokens)
        self.recorded = {name: rows.first(count) for name, rows in self.recorded.items()}

    def check(self) -> None:
        """Assert the invariants of the per-token lists."""
        count = len(self.tokens)
        assert len(self.logprobs) == len(self.loss_mask) == count, "one log-prob and one mask entry per token"
        assert sum(span.num_tokens for span in self.spans) == count, "weight spans cover the tokens"
        assert all(rows.shape[0] <= len(self.context) + count for rows in self.recorded.values()), "rows of its tokens"
        start = 0
        for span in self.spans:
            written = self.loss_mask[start : start + span.num_tokens] if span.version is None else ()
            assert not any(written), "what nobody sampled has no loss"
            start += span.num_tokens
