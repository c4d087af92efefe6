"""The nouns that walk through one step: plain dataclasses, no torch, no Ray, no SGLang.

Prompt -> Group[Sample[Segment]] -> Verdict -> Decision -> Batch -> WeightVersion -> Receipt
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from slime.segments import Segment, WeightSpan

if TYPE_CHECKING:
    import numpy as np

Message = Mapping[str, Any]
"""One chat message, `{"role": ..., "content": ...}`."""
RunStatus = Literal["finished", "failed", "interrupted"]
"""How a run ended."""
SFT, RL = "sft", "rl"
"""The names of a supervised and of a reinforcement-learning stage in metrics.jsonl, checkpoints and trackers."""
ADVANTAGES, ROLLOUT_LOGPROBS, IS_CURRENT = "advantages", "rollout_logprobs", "is_current"
"""Columns of a sample that was generated (`TrainSample`): its advantage; the log-probs that the engine recorded, in
nats; 1 where the token was generated under the very weights that are now trained, else 0."""
PREFERENCE = "preference"
"""Column of a pair of answers: 1 where one was chosen, -1 where it was rejected."""
Finish = Literal["stop", "length"]
"""How a response ended."""


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
        set: name of its set; empty: the first one. Of a named held-out set, `eval/<name>`.
    """

    id: str
    messages: tuple[Message, ...]
    tokens: tuple[int, ...]
    label: Any = None
    metadata: Mapping[str, Any] = field(default_factory=dict)
    set: str = ""


class Status(enum.StrEnum):
    """Why a sample's generation stands where it stands."""

    PENDING = "pending"  # nothing generated yet
    COMPLETED = "completed"  # ended by a stop token or stop string
    TRUNCATED = "truncated"  # reached the response limit
    ABORTED = "aborted"  # interrupted with what it had; may be continued
    FAILED = "failed"  # its program raised, or ended without a response


UNFINISHED = (Status.PENDING, Status.ABORTED)


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
    """One attempt at one prompt: what has a reward, an advantage or a failure, all of its segments together.

    Attributes:
        segments: what is trained on: of one response one, which begins with the prompt. Empty before it is begun.
        response: the last response's text, without special tokens.
        metadata: numbers that its program noted, by name.
        turns: what was said behind the prompt, of an attempt in conversations; responses with their special tokens.
        shaping: what filters added to the verdict's value (`slime.contracts.SampleFilter`).
    """

    prompt: Prompt
    index: int
    segments: list[Segment] = field(default_factory=list)
    status: Status = Status.PENDING
    response: str = ""
    verdict: Verdict | None = None
    metadata: dict[str, float] = field(default_factory=dict)
    turns: list[Message] = field(default_factory=list)
    shaping: float = 0.0

    @property
    def spans(self) -> list[WeightSpan]:
        """Of the tokens that the model sampled, over all segments."""
        return [span for segment in self.segments for span in segment.spans if span.version is not None]

    @property
    def num_sampled(self) -> int:
        """Tokens that the model sampled, over all segments."""
        return sum(span.num_tokens for span in self.spans)

    @property
    def reward(self) -> float | None:
        """What the sample is trained on: the verdict's value and its shaping, None while there is no value."""
        return None if self.verdict is None or self.verdict.value is None else self.verdict.value + self.shaping


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
        """What is trained on, of the samples that have a value (failed rewards are left out, never 0)."""
        return [sample.reward for sample in self.samples if sample.reward is not None]

    @property
    def raw_rewards(self) -> list[float]:
        """What the reward said of these samples, without what filters added."""
        return [each.verdict.value for each in self.samples if each.verdict and each.verdict.value is not None]

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


class Task(NamedTuple):
    """What a program is given: one attempt at one prompt.

    Attributes:
        attempt: number of the sample in its group, from 0.
        seed: 63 bits, the same whenever the run repeats this attempt; for noise of the program's own.
        is_evaluation: whether the prompt is a held-out one.
    """

    prompt: Prompt
    attempt: int
    seed: int
    is_evaluation: bool


class Turn(NamedTuple):
    """One response of the model, as a program sees it.

    Attributes:
        text: without special tokens.
        finish: `stop`: by an end token or stop string; `length`: at the response limit.
        full_text: of a conversation's turn, with special tokens but the one that ended it: calls of tools stand there.
        num_before, num_sampled: of a conversation's turn, tokens before it, and its own; 0 where there was no room.
    """

    text: str
    finish: Finish
    full_text: str = ""
    num_before: int = 0
    num_sampled: int = 0


@dataclass(frozen=True)
class TrainSample:
    """One sequence to train on: [prompt | response], or another segment of an attempt, ready to be packed.

    Shapes: `tokens` [num_tokens]; every other array [num_response_tokens], aligned with the *last* of the tokens.
    `columns`, some [.., width], are what the objective reads, by name. Where the mask is 0 they may hold anything.
    `recorded` by engines: [n, ...] of the first n tokens. `row`: what that of the data set holds beside prompt, label
    and answers. Neighbours with one `attempt` are its segments, one sample of `algo.loss_mean`; None: it is whole.
    """

    tokens: np.ndarray
    loss_mask: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    attempt: int | None = None
    recorded: Mapping[str, np.ndarray] = field(default_factory=dict)
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_response_tokens(self) -> int:
        return len(self.loss_mask)

    def with_columns(self, **columns: np.ndarray) -> TrainSample:
        """The same sample with these columns, added or in the place of those of their names."""
        return dataclasses.replace(self, columns={**self.columns, **columns})


@dataclass(frozen=True)
class MicroBatch:
    """Several sequences concatenated (thd), before context-parallel slicing.

    All per-token arrays have shape [num_tokens] (padding included) and are aligned with the *predicted* token:
    entry i speaks of the prediction of `labels[i]` from `tokens[..i]` of the same sequence.

    Attributes:
        tokens, labels: int64 ids, of the input and of what follows (0 where nothing is predicted).
        position_ids: int64, restart at 0 in every sequence that is whole.
        cu_seqlens: int32 [num_sequences + 1], *padded* sequence borders, multiples of the packing alignment.
        prefixes: int64 [num_sequences], how many of its first tokens a sequence has no rows for: the one before it
            begins with the same, and may lack rows too (`slime.train.packing.shared_rows`). None: all are whole.
        is_padding: bool, behind the end of a sequence, or of a whole micro-batch without any.
        loss_mask: float32, 0 on prompt, padding and each sequence's last position.
        loss_weights: float32, factors of the tokens' losses, whose plain sum over an optimizer step is the wanted mean.
        columns, recorded: those of `TrainSample`, aligned with `tokens`; columns float32 or int32, 0 where masked.
        sample_ids: index into the step's list of TrainSamples, one per sequence.
        attempt_sizes: sequences of each attempt, which are neighbours; None where micro-batches may divide attempts.
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
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    attempt_sizes: Sequence[int] | None = None
    recorded: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """What one optimizer step trains on, whole or the share of one data-parallel rank.

    Attributes:
        micro_batches: [data-parallel rank][micro-batch]; every rank has the same number of them. A share has its own
            rank's alone, and none at the others' places.
        num_tokens, num_loss_tokens: over all ranks, of a share too; without padding, a shared token for each sequence.
    """

    micro_batches: Sequence[Sequence[MicroBatch]]
    num_tokens: int
    num_loss_tokens: int

    def share(self, rank: int) -> Batch:
        """What data-parallel rank `rank` needs of the batch."""
        own = tuple(of_rank if number == rank else () for number, of_rank in enumerate(self.micro_batches))
        return dataclasses.replace(self, micro_batches=own)


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
