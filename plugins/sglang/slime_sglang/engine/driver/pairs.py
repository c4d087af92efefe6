"""Requests to prefill and decode engines, which answer every one of them in pairs.

    the same request, under one room -> prefill: the prompt's KV cache and the first token, sent to the room
                                     -> decode:  waits for the room, generates the rest; its answer counts

`sglang-router` is not used: it retries what an abort ended, drops fields of a request that it does not know, and takes
requests one by one.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from slime.config.schema import Role
from slime.engine_client.client import NO_COMPLETION, Completion, FinishReason, ServerFault
from slime.errors import SlimeError
from slime_sglang.engine.driver.client import SGLangClient
from slime_sglang.engine.frames import ASKS, FROM, ROWS

ABORT_AGAIN_S = 0.5
"""A request on its way is missed by an abort."""
END_S = 10.0
"""How long the other side of a broken pair has to answer."""
ROOMS = 1 << 40
"""Rooms of one prefill engine: more than it serves in years."""
FIRST_ROOMS = 1 << 39
"""The first room is any of these: an engine may still know rooms of other clients as done, and fails if one begins."""

_Answer = asyncio.Task[Completion]


class Unfinished(SlimeError):
    """A prefill engine has aborted a request: decode would wait for it."""


class Server:
    """One engine of a pair.

    Attributes:
        load: what its open requests amount to.
    """

    def __init__(self, client: SGLangClient) -> None:
        self.client, self.load = client, 0

    def ask(self, amount: int, *request: Any, **fields: Any) -> _Answer:
        """Send a request that counts `amount` until it is answered."""

        def take_off(answer: _Answer) -> None:
            self.load -= amount
            answer.cancelled() or answer.exception()  # who asked may be gone

        self.load += amount
        answer = asyncio.ensure_future(self._answer(*request, **fields))
        answer.add_done_callback(take_off)
        return answer

    async def _answer(self, *request: Any, **fields: Any) -> Completion:
        return await self.client.generate(*request, **fields)


class PrefillServer(Server):
    """A prefill engine, and the rooms that it sends KV caches to. Its data-parallel ranks take them by room modulo
    ranks, so each engine counts its own; a decode engine knows the rooms of all, so each has a range of its own."""

    def __init__(self, client: SGLangClient, number: int, bootstrap_port: int) -> None:
        super().__init__(client)
        first = 1 + secrets.randbelow(FIRST_ROOMS)  # SGLang takes room 0 for none
        self._rooms = itertools.count(number * ROOMS + first)
        self._url, self._port = client.url, bootstrap_port

    async def find(self) -> None:
        """Learn the port of an engine that was started again somewhere else."""
        if (url := self.client.url) != self._url:
            self._port = await bootstrap_port(self.client)
            self._url = url

    def room(self) -> dict[str, Any]:
        """Fields of a request that both sides get. No `rid` begins like another: an abort goes by how it begins."""
        room = next(self._rooms)
        bootstrap = {"bootstrap_host": urlsplit(self._url).hostname, "bootstrap_port": self._port}
        return {"rid": f"{room:016x}", "bootstrap_room": room, **bootstrap}

    async def _answer(self, *request: Any, **fields: Any) -> Completion:
        answer = await super()._answer(*request, **fields)
        if answer.finish_reason is FinishReason.ABORT:
            raise Unfinished("aborted a request", where=f"engine {self.client.url}", todo="See its log.")
        return answer


class Pairs:
    """All prefill and decode engines of a run, as the sampling loop sees them; any two of them can make a pair.

    A request goes to the prefill engine with the fewest prompt tokens and to the decode engine with the fewest
    requests. Where one side fails, the other is told to stop.

    Raises (every method):
        SlimeError: as `SGLangClient`, of the side that failed first.
    """

    def __init__(self, prefill: Sequence[PrefillServer], decode: Sequence[Server]) -> None:
        self._prefill, self._decode = prefill, decode
        self._clients = [server.client for server in (*prefill, *decode)]
        self._num_aborts = 0
        self.num_generating = len(decode)

    @property
    def url(self) -> str:
        """The URLs of all, for errors."""
        return ", ".join(client.url for client in self._clients)

    @classmethod
    async def of(cls, roles: Iterable[Role], clients: Sequence[SGLangClient]) -> Pairs:
        """Of a run's engines; each that prefills is asked for the port that it found at its start."""
        prefill, decode = list[PrefillServer](), list[Server]()
        for role, client in zip(roles, clients, strict=True):
            if role is Role.prefill:
                prefill.append(PrefillServer(client, len(prefill), await bootstrap_port(client)))
            else:
                decode.append(Server(client))
        return cls(prefill, decode)

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /, **fields: Any) -> Completion:
        """Do as `SGLangClient.generate`; raises SlimeError also if the two sides hold other weights."""
        prefill = min(self._prefill, key=lambda server: server.load)
        await prefill.find()
        decode = min(self._decode, key=lambda server: server.load)
        room, num_aborts = prefill.room(), self._num_aborts
        of_generated = {FROM: len(input_ids)} if ASKS in fields else {}
        answers = {
            prefill.ask(len(input_ids), input_ids, sampling, **fields, **room): prefill,
            decode.ask(1, input_ids, sampling, **fields, **room, **of_generated): decode,
        }
        try:
            done, pending = await asyncio.wait(answers, return_when=asyncio.FIRST_EXCEPTION)
            for answer in pending:
                await _end(answer, answers[answer].client, room["rid"])
        finally:
            for answer in answers:
                answer.cancel()
        fault = _cause(answers, done)
        if fault and not _is_abort(fault, was_aborted=self._num_aborts > num_aborts):
            raise fault
        prefilled, decoded = map(_generated, answers)
        if prefilled and decoded and prefilled.weight_version != decoded.weight_version:
            versions = f"{prefilled.weight_version} and {decoded.weight_version}"
            what = f"stale engine: the two answered with weight versions {versions}"
            where, todo = f"engines {prefill.client.url} and {decode.client.url}", "Start the same command again."
            raise SlimeError(what, where=where, todo=todo)
        if decoded and ASKS in fields:
            return with_prompt_rows(decoded, prefilled.meta if prefilled else {}, len(input_ids))
        return decoded or NO_COMPLETION

    async def abort_all(self) -> None:
        """End every request on both sides now."""
        self._num_aborts += 1
        await asyncio.gather(*(client.abort_all() for client in self._clients))

    async def flush_cache(self) -> None:
        await asyncio.gather(*(client.flush_cache() for client in self._clients))

    async def load(self) -> tuple[int, int]:
        """Load of both sides: a prefill engine with requests may stand still while decode engines have no room."""
        loads = await asyncio.gather(*(client.load() for client in self._clients))
        num_requests = [requests for requests, _ in loads]
        split = len(self._prefill)
        return max(sum(num_requests[:split]), sum(num_requests[split:])), sum(tokens for _, tokens in loads)


def with_prompt_rows(decoded: Completion, prefilled: Mapping[str, Any], num_prompt: int) -> Completion:
    """What one engine would have told of every token but the last: of the prompt what the prefill engine did, of what
    was generated what the decode engine did. Rows of either that did not come are zeros, which nobody takes for a
    choice.

    Args:
        prefilled: `meta_info` of the prefill engine's answer.
    """
    counts = num_prompt, len(decoded.tokens) - 1
    # The decode engine has no row, and tells none, of a response that ends with the token that prefill drew.
    told = prefilled.get(ROWS), decoded.meta.get(ROWS) if counts[1] else b""
    size = next((len(rows) // count for rows, count in zip(told, counts, strict=True) if rows and count), 0)
    meta = {name: value for name, value in decoded.meta.items() if name != ROWS}
    if size and decoded.tokens:
        parts = [bytes(count * size) if rows is None else rows for rows, count in zip(told, counts, strict=True)]
        meta[ROWS] = b"".join(parts)
    return replace(decoded, meta=meta)


async def bootstrap_port(client: SGLangClient) -> int:
    """The port that a prefill engine found at its start."""
    return int((await client.server_info())["disaggregation_bootstrap_port"])


async def _end(answer: _Answer, client: SGLangClient, rid: str) -> None:
    """Let the side that waits for one that failed stop waiting."""
    with suppress(SlimeError, TimeoutError):  # it failed too; the first failure is the one to tell
        async with asyncio.timeout(END_S):
            while not (await asyncio.wait([answer], timeout=ABORT_AGAIN_S))[0]:
                await client.abort(rid)


def _cause(answers: Iterable[_Answer], first: set[_Answer]) -> BaseException | None:
    """The fault that the other side's follows from; `first` came first. An engine that is gone is the cause, also if
    the other side noticed it before we did."""

    def by_rank(answer: _Answer) -> tuple[bool, bool]:
        return isinstance(answer.exception(), ServerFault | Unfinished), answer not in first

    failed = [answer for answer in answers if _has_ended(answer) and answer.exception()]
    return min(failed, key=by_rank).exception() if failed else None


def _has_ended(answer: _Answer) -> bool:
    return answer.done() and not answer.cancelled()


def _is_abort(fault: BaseException, *, was_aborted: bool) -> bool:
    """A request that waits for its other side, or for room, answers an abort as it answers a fault."""
    return isinstance(fault, Unfinished) or (was_aborted and isinstance(fault, ServerFault))


def _generated(answer: _Answer) -> Completion | None:
    return answer.result() if _has_ended(answer) and not answer.exception() else None
