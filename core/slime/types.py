"""The nouns that walk through one step: plain dataclasses, no torch, no Ray, no SGLang.

Prompt -> Group[Sample] -> Verdict -> Decision -> Batch -> WeightVersion -> Receipt
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np

Message = Mapping[str, Any]
"""One chat message, `{"role": ..., "content": ...}`."""
RunStatus = Literal["finished", "failed", "interrupted"]
"""How a run ended."""


@dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of a run.

    Attributes:
        name: `run.name`.
        folder: the run directory, the same when the run continues.
        config: the resolved config, section -> key -> value, without the values of environment variables.
    """

    name: str
    folder: Path
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Prompt:
    """One row of a prompt set, tokenised.

    Attributes:
        id: stable over runs and resumes: `<epoch>/<row number>`.
        messages: the chat messages as they stood in the row.
        tokens: prompt token ids after the chat template, generation prompt included.
        label: what the reward compares with; as it stood in the row.
        metadata: every other column of the row.
    """

    id: str
    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class Status(enum.StrEnum):
    """Why a sample's generation stands where it stands."""

    PENDING = "pending"  # nothing generated yet
    COMPLETED = "completed"  # ended by a stop token or stop string
    TRUNCATED = "truncated"  # reached the response limit
    ABORTED = "aborted"  # interrupted with what it had; may be continued
    FAILED = "failed"  # the engine gave no usable answer


@dataclass(frozen=True)
class WeightSpan:
    """`num_tokens` consecutive response tokens that were generated under weight version `version`."""

    version: int
    num_tokens: int


class VerdictKind(enum.StrEnum):
    VALUE = "value"
    INVALID = "invalid"  # the response cannot be judged (unparsable label, empty response, ...)
    TIMEOUT = "timeout"  # the reward exceeded its wall-clock limit
    ERROR = "error"  # the reward raised, or its worker died


@dataclass(frozen=True)
class Verdict:
    """What a reward said of one sample. Only `VALUE` carries a number; nothing else ever becomes 0.

    Attributes:
        kind: value, invalid, timeout or error.
        value: the reward; set exactly when `kind` is VALUE, and finite.
        reason: why there is no value; empty for VALUE.
        parts: named components of the value, each becomes a metric.
    """

    kind: VerdictKind
    value: float | None = None
    reason: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert (self.value is not None) == (self.kind is VerdictKind.VALUE), "only a VALUE verdict carries a value"

    @classmethod
    def of(cls, value: float, **parts: float) -> Verdict:
        return cls(VerdictKind.VALUE, float(value), parts=parts)

    @classmethod
    def invalid(cls, reason: str) -> Verdict:
        return cls(VerdictKind.INVALID, reason=reason)

    @classmethod
    def timeout(cls, reason: str) -> Verdict:
        return cls(VerdictKind.TIMEOUT, reason=reason)

    @classmethod
    def error(cls, reason: str) -> Verdict:
        return cls(VerdictKind.ERROR, reason=reason)


@dataclass
class Sample:
    """One response to one prompt.

    `response_tokens`, `logprobs` and `loss_mask` have one entry per generated token, `spans` add up to the same
    number. `logprobs` are natural logarithms under the engine's sampling distribution, softmax(logits / temperature).
    """

    prompt: Prompt
    index: int
    response_tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    loss_mask: list[int] = field(default_factory=list)
    spans: list[WeightSpan] = field(default_factory=list)
    status: Status = Status.PENDING
    response: str = ""
    verdict: Verdict | None = None
    metadata: dict[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        """Assert the invariants of the per-token lists."""
        count = len(self.response_tokens)
        assert len(self.logprobs) == len(self.loss_mask) == count, "one log-prob and one mask entry per token"
        assert sum(span.num_tokens for span in self.spans) == count, "weight spans cover the response"

    @property
    def reward(self) -> float | None:
        """The verdict's value, None while there is none."""
        return self.verdict.value if self.verdict else None


@dataclass
class Group:
    """The n samples of one prompt: the unit of filtering, buffering and advantage normalisation."""

    prompt: Prompt
    samples: list[Sample]

    @property
    def id(self) -> str:
        return self.prompt.id

    @property
    def rewards(self) -> list[float]:
        """The values of the samples that have one (failed rewards are left out, never 0)."""
        return [sample.reward for sample in self.samples if sample.reward is not None]

    @property
    def finished(self) -> bool:
        return all(sample.status in (Status.COMPLETED, Status.TRUNCATED) for sample in self.samples)


@dataclass(frozen=True)
class Decision:
    """What a filter said of one group; the reason of a drop becomes the metric `filter/drop/<reason>`."""

    keep: bool
    reason: str = ""

    def __post_init__(self) -> None:
        assert self.keep or self.reason, "a dropped group has a reason"


@dataclass(frozen=True)
class TrainSample:
    """One sequence to train on: [prompt | response], ready to be packed.

    Shapes: `tokens` [num_tokens]; every other array [num_response_tokens], aligned with the *last*
    `num_response_tokens` tokens. `advantages` and `rollout_logprobs` are None for supervised samples. `is_current`
    is 1 where the token was generated under the very weights that are now trained; None means everywhere.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    advantages: np.ndarray | None = None
    rollout_logprobs: np.ndarray | None = None
    is_current: np.ndarray | None = None

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_response_tokens(self) -> int:
        return len(self.loss_mask)


@dataclass(frozen=True)
class MicroBatch:
    """Several sequences concatenated (thd), before context-parallel slicing.

    All per-token arrays have shape [num_tokens] (padding included) and are aligned with the *predicted* token:
    entry i speaks of the prediction of `labels[i]` from `tokens[..i]` of the same sequence.

    Attributes:
        tokens: int64 input ids.
        labels: int64 next-token ids (0 where nothing is predicted).
        position_ids: int64, restart at 0 in every sequence that is whole.
        cu_seqlens: int32 [num_sequences + 1], *padded* sequence borders, multiples of the packing alignment.
        prefixes: int64 [num_sequences, 2], of the tokens that a sequence shares with an earlier one: the row of the
            micro-batch where they begin, and their number. They come before those of its own, among which they are not
            repeated. None where every sequence is whole.
        is_padding: bool, behind the end of a sequence, or of a whole micro-batch without any.
        loss_mask: float32, 0 on prompt, padding and each sequence's last position.
        loss_weights: float32, what each token's loss is multiplied with so that the plain sum over all ranks and
            micro-batches of an optimizer step is the wanted mean (denominators computed beforehand).
        advantages, rollout_logprobs, is_current: float32 or None, see `TrainSample`.
        sample_ids: index into the step's list of TrainSamples, one per sequence.
    """

    tokens: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    cu_seqlens: np.ndarray
    is_padding: np.ndarray
    loss_mask: np.ndarray
    loss_weights: np.ndarray
    sample_ids: Sequence[int]
    prefixes: np.ndarray | None = None
    advantages: np.ndarray | None = None
    rollout_logprobs: np.ndarray | None = None
    is_current: np.ndarray | None = None


@dataclass(frozen=True)
class Batch:
    """What one optimizer step trains on, whole or the share of one data-parallel rank.

    Attributes:
        micro_batches: [data-parallel rank][micro-batch]; every rank has the same number of them. A share has its own
            rank's alone, and none at the others' places.
        num_tokens, num_loss_tokens: over all ranks, of a share too; padding left out, and what is shared counted once.
    """

    micro_batches: Sequence[Sequence[MicroBatch]]
    num_tokens: int
    num_loss_tokens: int

    def share(self, rank: int) -> Batch:
        """What data-parallel rank `rank` needs of the batch."""
        own = tuple(of_rank if number == rank else () for number, of_rank in enumerate(self.micro_batches))
        return dataclasses.replace(self, micro_batches=own)


@dataclass(frozen=True)
class TensorDigest:
    """Name, shape, dtype and 64-bit content digest of one published tensor (HF name, full unsharded shape)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    digest: int


@dataclass(frozen=True)
class Receipt:
    """Proof that every engine holds exactly the published bytes of one weight version.

    Attributes:
        version: the weight version all engines now answer with.
        num_tensors, num_bytes: of the published set.
        num_bytes_sent: what left the publisher: of a delta far less.
        fingerprint: of its names, shapes, dtypes and bytes, whatever their order.
        engines: the URL of each engine that proved it.
        seconds: wall time by phase (gather, fill, digest, send, verify, ...); of the slowest publisher.
        rates: GB/s at which each source sent what is broadcast, by its name.
    """

    version: int
    num_tensors: int
    num_bytes: int
    num_bytes_sent: int
    fingerprint: str
    engines: tuple[str, ...]
    seconds: Mapping[str, float]
    rates: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def merged(cls, receipts: Sequence[Receipt]) -> Receipt:
        """One receipt from those of several publishers, which must have published the same bytes."""
        first = receipts[0]
        contents = {(each.version, each.num_tensors, each.num_bytes, each.fingerprint) for each in receipts}
        assert len(contents) == 1, f"publishers disagree: {contents}"
        engines = tuple(url for receipt in receipts for url in receipt.engines)
        seconds = {phase: max(receipt.seconds[phase] for receipt in receipts) for phase in first.seconds}
        return dataclasses.replace(first, engines=engines, seconds=seconds)
