"""Requests that are made at one moment, sent to an engine as one message, which it parses and hands on once.

The engine answers each of them as soon as it is finished (server-sent events), so nobody waits for the longest.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

MOST_REQUESTS, MOST_TOKENS = 64, 1 << 16
"""Of one message: SGLang looks through all of its requests whenever one of them is finished, and does nothing else
while it parses a message."""
AT_ITS_END = -(1 << 30)
"""`stream_interval` with which a request is answered once. SGLang 0.5.16 answers whenever that many tokens have come,
and after the first one too where it is above 1."""
_EVENT, _END = b"data: ", b"[DONE]"

Body = Mapping[str, Any]
"""Of one request: `input_ids`, `sampling_params` and flags."""
Answers = AsyncIterator[tuple[int, Any]]


@dataclass(frozen=True)
class _Waiting:
    """One request that was made, and who waits for its answer."""

    body: Body
    answer: asyncio.Future[Any]


_ALONE = object()
"""Told to a request that is sent by itself: who made it sends it, without a task between."""


class RequestBatcher:
    """Collects what is asked for until the event loop comes round, and sends it.

    Args:
        alone: asks for a single request.
        stream: asks for several of them in one body; yields (place, answer) as they come, one for each of them.
    """

    def __init__(self, alone: Callable[[Body], Coroutine[Any, Any, Any]], stream: Callable[[Body], Answers]) -> None:
        self._alone, self._stream = alone, stream
        self._waiting: list[_Waiting] = []
        self._sent: set[asyncio.Task[None]] = set()

    async def ask(self, body: Body) -> Any:
        """The answer to one request; a cancellation leaves those that were sent with it alone. Raises as `alone` or
        `stream` does."""
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._send)  # behind all that is ready to run now, and may ask as well
        waiting = _Waiting(body, loop.create_future())
        self._waiting.append(waiting)
        answer = await waiting.answer
        return await self._alone(body) if answer is _ALONE else answer

    async def close(self) -> None:
        """Drop what was sent with others and was not answered."""
        for task in self._sent:
            task.cancel()
        await asyncio.gather(*self._sent, return_exceptions=True)

    def _send(self) -> None:
        waiting, self._waiting = [one for one in self._waiting if not one.answer.done()], []
        for part in _parts(waiting):
            if len(part) == 1:
                part[0].answer.set_result(_ALONE)
                continue
            task = asyncio.create_task(self._serve(part))
            self._sent.add(task)
            task.add_done_callback(lambda task, part=part: self._end(task, part))  # type: ignore[misc]
            for one in part:
                one.answer.add_done_callback(lambda _, task=task, part=part: _drop(task, part))  # type: ignore[misc]

    async def _serve(self, part: Sequence[_Waiting]) -> None:
        async for place, answer in self._stream(joined([one.body for one in part])):
            if not (waits := part[place].answer).done():  # who asked may be gone
                waits.set_result(answer)

    def _end(self, task: asyncio.Task[None], part: Sequence[_Waiting]) -> None:
        """Those that were not answered share the error."""
        self._sent.discard(task)
        for one in part:
            if task.cancelled():
                one.answer.cancel()
            elif (error := task.exception()) and not one.answer.done():
                one.answer.set_exception(error)


def _drop(task: asyncio.Task[None], part: Sequence[_Waiting]) -> None:
    """Close the connection, by which the engine learns it, once nobody waits for anything from it."""
    if all(one.answer.cancelled() for one in part):
        task.cancel()


def _parts(waiting: Sequence[_Waiting]) -> list[list[_Waiting]]:
    """Runs of requests that ask for the same things, bounded in requests and tokens; a longer one goes alone."""
    parts: list[list[_Waiting]] = []
    num_tokens = 0
    for one in waiting:
        length = len(one.body["input_ids"])
        num_tokens += length
        differs = bool(parts) and parts[-1][0].body.keys() != one.body.keys()
        if not parts or len(parts[-1]) == MOST_REQUESTS or num_tokens > MOST_TOKENS or differs:
            parts.append([])
            num_tokens = length
        parts[-1].append(one)
    return parts


def joined(bodies: Sequence[Body]) -> dict[str, Any]:
    """One body for several requests, whose answers are streamed."""
    return {
        **bodies[0],
        "input_ids": [body["input_ids"] for body in bodies],
        "sampling_params": [{**body["sampling_params"], "stream_interval": AT_ITS_END} for body in bodies],
        "stream": True,
    }


async def events(chunks: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """What server-sent events say in JSON, of any length. Reads on behind SGLang's mark of the end, for a connection
    whose answer is not read to its own end is closed.

    Raises:
        EOFError: the mark is missing.
    """
    data, seen, has_ended = bytearray(), 0, False
    async for chunk in chunks:
        data += chunk
        while (end := data.find(b"\n\n", seen)) >= 0:
            event = bytes(data[len(_EVENT) : end])
            del data[: end + 2]
            seen = 0
            if not (has_ended := event == _END):
                yield orjson.loads(event)
        seen = max(0, len(data) - 1)
    if not has_ended:
        raise EOFError("the answer broke off")
