"""One `/generate` request, which appends the tokens that the engine sampled to a segment."""

from __future__ import annotations

import asyncio
import bisect
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from slime.config.schema import SamplingConfig
from slime.conversation import RefusedError, Stop
from slime.data.token_ids import strange
from slime.data.tokenize import Tokenizer, decode, end_tokens
from slime.engine_client.client import Completion, FinishReason
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.models.traits import Recording
from slime.segments import Segment, WeightSpan
from slime.types import Sample, Status

_STATUS = {
    FinishReason.STOP: Status.COMPLETED,
    FinishReason.LENGTH: Status.TRUNCATED,
    FinishReason.ABORT: Status.ABORTED,
}


class Passed(NamedTuple):
    """A request's answer, and the version that the engines held when it was sent."""

    completion: Completion
    version: int
    is_interrupted: bool = False
    """The gate closed meanwhile, and may have aborted it."""


class Gate(Protocol):
    """Lets requests through to the engines, or has them wait."""

    version: int
    """The version that every engine holds; behind a gate that is closed, the one that they held."""

    @property
    def keeps_keys(self) -> bool:
        """Whether tokens are sampled on keys and values of older weights than their own."""

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], **fields: Any) -> Passed:
        """Do as `EngineSet.generate`, once the gate is open."""

    async def close(self) -> None:
        """Let nothing through from now on. Afterwards the engines generate nothing, and take new weights.

        Raises:
            SlimeError: an engine is gone, or does not answer.
        """

    async def open(self, version: int) -> None:
        """Go on: every engine holds `version`."""


class Generator:
    """Continues segments through the engines.

    Args:
        sampling: distribution and response limit.
        gate: of engines whose weights change while requests are inside; None: nothing is inside then.
        recordings: what the engines are to note of every token.
        vocab_size: ids from there on have no embedding; None: it is not known.
    """

    def __init__(
        self,
        engines: EngineSet,
        sampling: SamplingConfig,
        tokenizer: Tokenizer,
        gate: Gate | None = None,
        recordings: Sequence[Recording] = (),
        vocab_size: int | None = None,
    ) -> None:
        self._engines, self._tokenizer, self._gate, self._recordings = engines, tokenizer, gate, recordings
        self._vocab_size = vocab_size
        self._fields = {name: value for each in recordings for name, value in each.request_fields.items()}
        self._sampling, self._stop = sampling, list(sampling.stop)
        self._end_tokens = end_tokens(tokenizer)
        self._params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop_token_ids": sorted(self._end_tokens),
        }

    async def continue_response(
        self, segment: Segment, begun: int, limit: int, version: int, seed: int, stop: Stop = ()
    ) -> tuple[Completion, Status]:
        """Generate from all that the segment has until its last response ends or the request is aborted; one that the
        gate aborted goes on.

        Args:
            begun: tokens behind the context that stand before the response.
            limit: tokens that the segment may have behind its context.
            version: that every engine holds; with a gate, which knows, any.
            seed: of the segment (`sampling_seed`).
            stop: what ends this response, beside the strings that end every response. What engines sample behind it is
                cut off here.

        Returns:
            What the engine answered, which the segment has by now, up to and with the first token that ends the
            response; and how it stands: completed, truncated or aborted.

        Raises:
            SlimeError: the engine failed, or answered with other weights than it should hold.
        """
        remaining = limit - len(segment.tokens)
        assert remaining > 0, "a response at the limit is truncated, not continued"
        params = {**self._params, "stop": self._stop, "max_new_tokens": remaining, "sampling_seed": seed}
        asked = [*segment.context, *segment.tokens]
        passed = await self._ask(asked, params, version)
        completion = passed.completion
        for recording in self._recordings:
            tokens, before = [*asked, *completion.tokens], segment.recorded.get(recording.name)
            if rows := await asyncio.to_thread(recording.read, completion.meta, tokens, before):
                segment.recorded[recording.name] = rows
        if self._append(segment, begun, limit, passed, stop):
            return completion, Status.COMPLETED
        # SGLang calls a request aborted even if its last step brought the last token allowed.
        at_limit = len(segment.tokens) == limit
        status = Status.TRUNCATED if at_limit else _STATUS[completion.finish_reason]
        if status is Status.ABORTED and passed.is_interrupted:
            rest, status = await self.continue_response(segment, begun, limit, version, seed, stop)
            return completion.followed_by(rest), status
        return completion, status

    async def _ask(self, input_ids: Sequence[int], params: Mapping[str, Any], version: int) -> Passed:
        if self._gate is None:
            passed = Passed(await self._engines.generate(input_ids, params, **self._fields), version)
        else:
            passed = await self._gate.generate(input_ids, params, **self._fields)
            version = self._gate.version
        self._check_versions(passed.completion, range(passed.version, version + 1))
        return passed

    def require_known(self, ids: Sequence[int]) -> None:
        """RefusedError if one of them is none of the model's: an engine would die of it."""
        if self._vocab_size is not None and (number := strange(ids, self._vocab_size)) is not None:
            what, todo = f"the model has no token {number}: its ids end at {self._vocab_size - 1}", "Say other tokens."
            raise RefusedError(what, todo=todo)

    def limit(self, context: Sequence[int]) -> int:
        """Tokens that may stand behind a context."""
        response, sequence = self._sampling.max_response_tokens, self._sampling.max_sequence_tokens
        return response if sequence is None else min(response, sequence - len(context))

    def text(self, tokens: Sequence[int]) -> str:
        """Tokens of a response as text, without special tokens."""
        return decode(self._tokenizer, tokens, special=False)

    def _append(self, segment: Segment, begun: int, limit: int, passed: Passed, stop: Stop) -> bool:
        """Add what was generated up to and with the first token that ends the response; whether there is one.

        SGLang notices an abort, and then the last token allowed, before it looks for an end. So a step that brought
        several tokens (of a drafting model) may have some behind the end or the limit, and be called `abort` or
        `length`. And it looks for stop strings in the tokens of one request only, not in those before an abort.
        """
        before, completion = len(segment.tokens), passed.completion
        segment.tokens.extend(completion.tokens)
        del segment.tokens[limit:]
        end = self._first_end(segment.tokens[begun:], before - begun, stop)
        if end is not None:
            del segment.tokens[begun + end :]
        segment.cut_rows()
        count = len(segment.tokens) - before
        segment.logprobs.extend(completion.logprobs[:count])
        segment.loss_mask.extend([1] * count)
        keeps_keys = self._gate is not None and self._gate.keeps_keys
        for version, tokens in completion.spans:
            if taken := min(tokens, count):
                segment.spans.append(WeightSpan(version, taken, is_mixed=keeps_keys and version != passed.version))
                count -= taken
        segment.check()
        return end is not None

    def _first_end(self, tokens: list[int], begun: int, stop: Stop) -> int | None:
        """Length of the response if it ends within `tokens[begun:]`: with its first end token or stop string."""
        ends = self._end_tokens.intersection(tokens[begun:])
        end = min((tokens.index(each, begun) + 1 for each in ends), default=None)
        upto = len(tokens) if end is None else end

        def has_stop_string(length: int) -> bool:  # as SGLang looks for them: in the text of special tokens too
            text = decode(self._tokenizer, tokens[:length])
            if any(each in text for each in self._stop):
                return True
            return stop(text) if callable(stop) else any(each in text for each in stop)

        if (self._stop or stop) and has_stop_string(upto):
            lengths = range(begun + 1, upto + 1)
            return lengths[bisect.bisect_left(lengths, True, key=has_stop_string)]
        return end

    def _check_versions(self, completion: Completion, allowed: range) -> None:
        found = {completion.weight_version, *(version for version, _ in completion.earlier)} - {None}
        if wrong := found.difference(allowed):
            right = " or ".join(str(version) for version in allowed)
            what = f"stale engine: it answered with weight version {min(wrong, key=str)}, not {right}"
            todo = "Nothing else may update this engine's weights; resume the run."
            raise SlimeError(what, where=self._engines.url, todo=todo)


def sampling_seed(seed: int, sample: Sample, number: int = 0) -> int:
    """Seed of a segment's requests, 63 bits, from the run's seed, from which sample it is, and from the `number` of
    the segment among those that its attempt began.

    SGLang draws the token at position t of a sequence by a hash of (seed, t) when it runs with
    `enable_deterministic_inference`: a run repeats however its requests are batched, and a continued response goes on
    with the noise it would have had uninterrupted. Without that mode SGLang ignores the seed.
    """
    name = f"{seed}/{sample.prompt.id}/{sample.index}" + (f"/{number}" if number else "")
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
