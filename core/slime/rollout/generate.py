"""One `/generate` request: from a sample as it stands to a sample with what the engine added."""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from slime.config.schema import SamplingConfig
from slime.data.tokenize import Tokenizer, end_tokens
from slime.errors import SlimeError
from slime.types import Sample, Status, WeightSpan

_STATUS = {"stop": Status.COMPLETED, "length": Status.TRUNCATED, "abort": Status.ABORTED}
"""SGLang's finish reasons."""


class Generation(Protocol):
    """What an engine answered: the new tokens only."""

    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def logprobs(self) -> Sequence[float]: ...
    @property
    def finish_reason(self) -> str: ...
    @property
    def weight_version(self) -> int | None: ...
    @property
    def num_drafted(self) -> int: ...
    @property
    def num_accepted(self) -> int: ...


class Front(Protocol):
    """What takes requests: an engine, or what stands before several."""

    url: str

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /) -> Generation: ...


class Engine(Front, Protocol):
    """What the sampling loop asks of an engine (`EngineClient`), or of `Pairs` of them.

    Attributes:
        num_generating: engines that requests are spread over.
    """

    num_generating: int

    async def abort_all(self) -> None: ...

    async def flush_cache(self) -> None: ...

    async def load(self) -> tuple[int, int]: ...


class Generator:
    """Continues samples through one engine or several.

    Args:
        engine: where requests go.
        sampling: distribution and response limit.
        tokenizer: turns finished responses into text.
        seed: of the run; each request derives its own from it.
    """

    def __init__(self, engine: Front, sampling: SamplingConfig, tokenizer: Tokenizer, seed: int) -> None:
        self._engine, self._tokenizer, self._seed = engine, tokenizer, seed
        self._sampling, self._stop = sampling, list(sampling.stop)
        self._end_tokens = end_tokens(tokenizer)
        self._params = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "stop": self._stop,
            "stop_token_ids": sorted(self._end_tokens),
        }

    async def continue_sample(self, sample: Sample, version: int) -> Generation:
        """Generate from prompt and partial response until the sample ends or the request is aborted.

        Returns:
            What the engine answered, which the sample has by now, up to and with the first token that ends it.

        Raises:
            SlimeError: the engine failed, or answered with other weights than `version`.
        """
        input_ids = [*sample.prompt.tokens, *sample.response_tokens]
        generation = await self._engine.generate(input_ids, self._request_params(sample))
        self._check_version(generation, version)
        has_ended = self._append(sample, generation)
        sample.status = Status.COMPLETED if has_ended else self._unended(sample, generation.finish_reason)
        if sample.status is not Status.ABORTED:
            sample.response = self._text(sample)
        return generation

    def _request_params(self, sample: Sample) -> dict[str, Any]:
        remaining = self._limit(sample) - len(sample.response_tokens)
        assert remaining > 0, "a sample at the response limit is truncated, not continued"
        return {**self._params, "max_new_tokens": remaining, "sampling_seed": sampling_seed(self._seed, sample)}

    def _limit(self, sample: Sample) -> int:
        """Tokens that the response may have."""
        response, sequence = self._sampling.max_response_tokens, self._sampling.max_sequence_tokens
        return response if sequence is None else min(response, sequence - len(sample.prompt.tokens))

    def _append(self, sample: Sample, generation: Generation) -> bool:
        """Add what was generated up to and with the first token that ends the response; whether there is one.

        SGLang notices an abort, and then the last token allowed, before it looks for an end. So a step that brought
        several tokens (of a drafting model) may have some behind the end or the limit, and be called `abort` or
        `length`. And it looks for stop strings in the tokens of one request only, not in those before an abort.
        """
        begun = len(sample.response_tokens)
        sample.response_tokens.extend(generation.tokens)
        del sample.response_tokens[self._limit(sample) :]
        end = self._first_end(sample.response_tokens, begun)
        if end is not None:
            del sample.response_tokens[end:]
        count = len(sample.response_tokens) - begun
        sample.logprobs.extend(generation.logprobs[:count])
        sample.loss_mask.extend([1] * count)
        if count:
            assert generation.weight_version is not None, "tokens are of some version"
            sample.spans.append(WeightSpan(generation.weight_version, count))
        sample.check()
        return end is not None

    def _first_end(self, tokens: list[int], begun: int) -> int | None:
        """Length of the response if it ends within `tokens[begun:]`: with its first end token or stop string."""
        ends = (place + 1 for place in range(begun, len(tokens)) if tokens[place] in self._end_tokens)
        end = next(ends, None)
        upto = len(tokens) if end is None else end
        if self._stop and self._has_stop_string(tokens[:upto]):
            lengths = range(begun + 1, upto + 1)
            return lengths[bisect.bisect_left(lengths, True, key=lambda length: self._has_stop_string(tokens[:length]))]
        return end

    def _has_stop_string(self, tokens: Sequence[int]) -> bool:
        """As SGLang looks for them: in the text of special tokens too."""
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return any(stop in text for stop in self._stop)

    def _unended(self, sample: Sample, finish_reason: str) -> Status:
        """SGLang calls a request aborted even if its last step brought the last token allowed."""
        return Status.TRUNCATED if len(sample.response_tokens) == self._limit(sample) else _STATUS[finish_reason]

    def _text(self, sample: Sample) -> str:
        text: str = self._tokenizer.decode(sample.response_tokens, skip_special_tokens=True)
        return text

    def _check_version(self, generation: Generation, version: int) -> None:
        if generation.weight_version not in (version, None):
            what = f"stale engine: it answered with weight version {generation.weight_version}, not {version}"
            todo = "Nothing else may update this engine's weights; resume the run."
            raise SlimeError(what, where=self._engine.url, todo=todo)


def sampling_seed(seed: int, sample: Sample) -> int:
    """Seed of a sample's requests, 63 bits, from the run's seed and from which sample it is.

    SGLang draws the token at position t of a sequence by a hash of (seed, t) when it runs with
    `enable_deterministic_inference`: a run repeats however its requests are batched, and a continued response goes on
    with the noise it would have had uninterrupted. Without that mode SGLang ignores the seed.
    """
    name = f"{seed}/{sample.prompt.id}/{sample.index}"
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "big") >> 1
