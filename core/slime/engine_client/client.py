"""Requests of the sampling loop to an engine, and what comes back."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from slime.errors import SlimeError
from slime.net import Endpoint


class FinishReason(enum.StrEnum):
    """Why the engine stopped: SGLang's own words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True)
class Completion:
    """The answer to one request, also when it was aborted.

    Attributes:
        tokens: generated token ids, the stop token included.
        logprobs: natural logarithms of their probabilities, one a token, under softmax(logits / temperature); what
            top-p and top-k cut off is not left out. SGLang counts temperature 0 as 1 here.
        finish_reason: stop, length or abort.
        weight_version: of the weights that sampled its last token. None: it was aborted before an engine began.
        num_drafted, num_accepted: tokens that were proposed by a drafting model, and those of them that were taken.
        earlier: of a request that lasted while weights changed, (version, tokens) of its first tokens; the others are
            of `weight_version`.
        meta: all that the engine says of the request, `meta_info`.
    """

    tokens: list[int]
    logprobs: list[float]
    finish_reason: FinishReason
    weight_version: int | None
    num_drafted: int
    num_accepted: int
    earlier: Sequence[tuple[int, int]] = ()
    meta: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @property
    def spans(self) -> list[tuple[int, int]]:
        """(version, tokens) of all tokens, in their order."""
        found, left = list[tuple[int, int]](), len(self.tokens)
        last = [] if self.weight_version is None else [(self.weight_version, left)]
        for version, count in [*self.earlier, *last]:
            if taken := min(count, left):
                found.append((version, taken))
                left -= taken
        assert not left, "tokens are of some version"
        return found

    def followed_by(self, rest: Completion) -> Completion:
        """This one, which was aborted, and that of the request for the rest, as one."""
        return Completion(
            [*self.tokens, *rest.tokens],
            [*self.logprobs, *rest.logprobs],
            rest.finish_reason,
            self.weight_version if rest.weight_version is None else rest.weight_version,
            self.num_drafted + rest.num_drafted,
            self.num_accepted + rest.num_accepted,
            [*self.spans, *rest.earlier],
        )


NO_COMPLETION = Completion([], [], FinishReason.ABORT, None, 0, 0)
"""The answer to a request that was aborted before an engine began."""


class ServerFault(SlimeError):
    """An engine could not finish a request, by its own account: HTTP status 500."""


class EngineGone(SlimeError):
    """An engine is not there any more, or broke the connection off."""


class Engine(Protocol):
    """A member of a `slime.engine_client.engine_set.EngineSet`: one engine, or several that work together."""

    num_generating: int
    """Engines that decode; each takes `rollout.max_requests_per_engine` requests at once."""

    @property
    def url(self) -> str:
        """Its address, or those of all that work together."""

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /, **fields: Any) -> Completion:
        """Continue `input_ids` under SGLang's sampling parameters (`temperature`, `max_new_tokens`, ...); `fields` are
        others of its request.

        Raises:
            EngineGone: before it was answered.
        """

    async def abort_all(self) -> None:
        """End every request now; each answers with what it had."""

    async def flush_cache(self) -> None:
        """Wait until the engine is idle, then have it forget the prefix cache."""

    async def load(self) -> tuple[int, int]:
        """Requests that run or wait, and tokens in the pool that they use."""


@runtime_checkable
class EngineClient(Engine, Protocol):
    """Requests to one server.

    Raises (every method):
        SlimeError: naming URL and log: the engine is gone, hangs, or refused the request.
    """

    log: Path | None
    cache_key: str | None
    """A request finds in the prefix cache what others of the same key left there."""

    def move(self, endpoint: Endpoint) -> None:
        """Send requests to `endpoint` from now on: the engine was started again there."""

    async def close(self) -> None:
        """Drop what was not answered."""

    async def pause(self, mode: Literal["retract", "in_place"]) -> None:
        """Generate nothing until `resume`. Requests stay in the engine, `in_place` with their keys and values, or go
        back to its queue without them. When this returns, it has answered all that have ended."""

    async def resume(self) -> None:
        """Go on after `pause`."""
