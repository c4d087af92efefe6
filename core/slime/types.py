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
Finish = Literal["stop", "length"]
"""How a response ended: by an end token or stop string, or at the response limit."""
SFT, RL = "sft", "rl"
"""The names of a supervised and of a reinforcement-learning stage in metrics.jsonl, checkpoints and trackers."""
ADVANTAGES, ROLLOUT_LOGPROBS, IS_CURRENT = "advantages", "rollout_logprobs", "is_current"
"""Columns of a sample that was generated (`TrainSample`): its advantage; the log-probs that the engine recorded, in
nats; 1 where the token was generated under the very weights that are now trained, else 0."""
KEPT_TOKENS = "kept_tokens"
"""Column [t, width] of samples that engines drew from the likeliest tokens alone: 1 + id of each token that could have
been drawn, 0 behind the last."""
PREFERENCE = "preference"
"""Column of a pair of answers: 1 where one was chosen, -1 where it was rejected."""


@dataclass(frozen=True)
class TrackedRun:
    """A run as trackers know it."""

    name: str  # `run.name`
    folder: Path  # the run directory, the same when the run continues
    config: Mapping[str, Any]  # section -> key -> value, resolved, without the values of environment variables


@dataclass(frozen=True)
class Prompt:
    """One row of a prompt set, tokenised."""

    id: str  # `<epoch>/<row number>`, stable over runs and resumes
    messages: tuple[Message, ...]  # as they stood in the row
    tokens: tuple[int, ...]  # ids after the chat template, generation prompt included
    label: Any = None  # what the reward compares with, as it stood in the row
    metadata: Mapping[str, Any] = field(default_factory=dict)  # every other column of the row
    set: str = ""  # name of its set; empty: the first one; `eval/<name>`: a named held-out set
    is_text: bool = False  # the row had a text, which is the message


class Status(enum.StrEnum):
    """How far a sample's generation has come."""

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
    """A reward's word on one sample. Only `VALUE` carries a number; nothing else ever becomes 0."""

    kind: VerdictKind
    value: float | None = None  # the reward, finite
    reason: str = ""  # why there is no value
    parts: Mapping[str, float] = field(default_factory=dict)  # named components of the value: metrics

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
    """One attempt at one prompt: what has a reward, an advantage or a failure, all of its segments together."""

    prompt: Prompt
    index: int
    segments: list[Segment] = field(default_factory=list)  # trained on; one for one response, none before it is begun
    status: Status = Status.PENDING
    response: str = ""  # the last response's text, without special tokens
    verdict: Verdict | None = None
    metadata: dict[str, float] = field(default_factory=dict)  # numbers that its program noted, by name
    turns: list[Message] = field(default_factory=list)  # a conversation after the prompt; responses with special tokens
    shaping: float = 0.0  # what filters added to the verdict's value (`slime.contracts.SampleFilter`)

    @property
    def spans(self) -> list[WeightSpan]:
        """Weight spans of the tokens that the model sampled, over all segments."""
        return [span for segment in self.segments for span in segment.spans if span.version is not None]

    @property
    def num_sampled(self) -> int:
        return sum(span.num_tokens for span in self.spans)

    @property
    def reward(self) -> float | None:
        """The number that is trained on: the verdict's value and its shaping; None without a value."""
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
        """Rewards of the samples that have one (a failed reward is left out, never 0)."""
        return [sample.reward for sample in self.samples if sample.reward is not None]

    @property
    def raw_rewards(self) -> list[float]:
        """These rewards without what filters added."""
        return [each.verdict.value for each in self.samples if each.verdict and each.verdict.value is not None]

    @property
    def finished(self) -> bool:
        return all(sample.status in (Status.COMPLETED, Status.TRUNCATED) for sample in self.samples)


@dataclass(frozen=True)
class Decision:
    """A filter's word on one group; the reason of a drop becomes the metric `filter/drop/<reason>`."""

    keep: bool
    reason: str = ""

    def __post_init__(self) -> None:
        assert self.keep or self.reason, "a dropped group has a reason"


class Task(NamedTuple):
    """One attempt at one prompt, as a program gets it."""

    prompt: Prompt
    attempt: int  # number of the sample in its group, from 0
    seed: int  # 63 bits, the same whenever the run repeats this attempt; for noise of the program's own
    is_evaluation: bool  # the prompt is a held-out one


class Turn(NamedTuple):
    """One response of the model, as a program sees it. What has a default is set for a turn of a conversation."""

    text: str  # without special tokens
    finish: Finish
    full_text: str = ""  # with special tokens, but the one that ended it: calls of tools are in it
    num_before: int = 0  # tokens before it
    num_sampled: int = 0  # its own tokens; 0 where there was no room


@dataclass(frozen=True)
class TrainSample:
    """One sequence to train on: [prompt | response], or another segment of an attempt, ready to be packed.

    Mask and columns have shape [num_response_tokens], some columns [.., width], aligned with the *last* of the tokens.
    """

    tokens: np.ndarray  # [num_tokens]
    loss_mask: np.ndarray
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)  # by name; anything where the mask is 0
    attempt: int | None = None  # number; neighbours with the same one are segments of an attempt. None: a whole one
    recorded: Mapping[str, np.ndarray] = field(default_factory=dict)  # by engines: [n, ...] of the first n tokens
    row: Mapping[str, Any] = field(default_factory=dict)  # of the data set, beside prompt, label and answers

    @property
    def num_tokens(self) -> int:
        return len(self.tokens)

    @property
    def num_response_tokens(self) -> int:
        return len(self.loss_mask)

    def with_columns(self, **columns: np.ndarray) -> TrainSample:
        """This sample with these columns added or replaced."""
        return dataclasses.replace(self, columns={**self.columns, **columns})


@dataclass(frozen=True)
class MicroBatch:
    """Several sequences concatenated (thd), before context-parallel slicing.

    Per-token arrays have shape [num_tokens], padding included. Entry i is about the prediction of `labels[i]` from
    `tokens[..i]` of the same sequence.

    Attributes:
        loss_weights: float32, factors of the tokens' losses, whose plain sum over an optimizer step is the wanted mean.
        prefixes: int64 [num_sequences], how many of its first tokens a sequence has no rows for: the one before it
            begins with the same, and may lack rows too (`slime.train.packing.shared_rows`). None: all are whole.
        columns, recorded: those of `TrainSample`, aligned with `tokens`; columns float32 or int32, 0 where masked.
        attempt_sizes: sequences of each attempt, which are neighbours; None where micro-batches may divide attempts.
    """

    tokens: np.ndarray  # int64 ids of the input
    labels: np.ndarray  # int64 ids of what follows, 0 where nothing is predicted
    position_ids: np.ndarray  # int64, restart at 0 in every sequence that is whole
    cu_seqlens: np.ndarray  # int32 [num_sequences + 1], *padded* borders, multiples of the packing alignment
    is_padding: np.ndarray  # bool, after the end of a sequence, or of a whole micro-batch without any
    loss_mask: np.ndarray  # float32, 0 on prompt, padding and each sequence's last position
    loss_weights: np.ndarray
    sample_ids: Sequence[int]  # index into the step's list of TrainSamples, one per sequence
    prefixes: np.ndarray | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    attempt_sizes: Sequence[int] | None = None
    recorded: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Batch:
    """Sequences of one optimizer step, whole or the share of one data-parallel rank.

    Attributes:
        micro_batches: [data-parallel rank][micro-batch], as many for every rank; a share has those of its rank alone.
        num_tokens, num_loss_tokens: over all ranks, of a share too; without padding, a shared token for each sequence.
    """

    micro_batches: Sequence[Sequence[MicroBatch]]
    num_tokens: int
    num_loss_tokens: int

    def share(self, rank: int) -> Batch:
        """The part that data-parallel rank `rank` needs."""
        own = tuple(of_rank if number == rank else () for number, of_rank in enumerate(self.micro_batches))
        return dataclasses.replace(self, micro_batches=own)


@dataclass(frozen=True)
class Receipt:
    """Proof that every engine holds exactly the published bytes of one weight version."""

    version: int  # that all engines now answer with
    num_tensors: int
    num_bytes: int
    num_bytes_sent: int  # what left the publisher: far less of a delta
    fingerprint: str  # of names, shapes, dtypes and bytes, whatever their order
    engines: tuple[str, ...]  # the URL of each engine that proved it
    seconds: Mapping[str, float]  # wall time by phase (gather, fill, digest, send, ...), of the slowest publisher
    rates: Mapping[str, float] = field(default_factory=dict)  # GB/s of each source of a broadcast, by its name

    @classmethod
    def merged(cls, receipts: Sequence[Receipt]) -> Receipt:
        """One receipt from those of several publishers, which must have published the same bytes."""
        first = receipts[0]
        contents = {(each.version, each.num_tensors, each.num_bytes, each.fingerprint) for each in receipts}
        assert len(contents) == 1, f"publishers disagree: {contents}"
        engines = tuple(url for receipt in receipts for url in receipt.engines)
        seconds = {phase: max(receipt.seconds[phase] for receipt in receipts) for phase in first.seconds}
        return dataclasses.replace(first, engines=engines, seconds=seconds)
