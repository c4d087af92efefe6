"""Bodies of requests: their limits in size and time, and the requests and verdicts in them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import ModuleType
from typing import Any

import orjson
from aiohttp import web

from guarded_workers.wire import MALFORMED
from slime.reward.verdicts import MAX_PART, MAX_VALUE, verdict
from slime.types import Verdict, VerdictKind
from slime_agents.endpoint import values
from slime_agents.endpoint.attempt import Attempt
from slime_agents.endpoint.said import RefusedRequestError, Request

MAX_BODY = 2**24
"""Bytes of a request: 16 for each of a million tokens. English has four a token, Chinese in JSON's escapes twelve."""
MAX_VERDICT = 2**16
"""Bytes of a verdict."""
MAX_VALUES = 500_000
"""Braces, brackets and commas of a body. Reading a body with this many takes a twentieth of a second and 50 MB."""
BODY_S = 60.0
"""Seconds that a body may take to arrive."""
_LARGE, _LARGE_AT_ONCE = 2**20, 2
"""Bytes from which on few bodies are read at a time: each takes some times its size until it is a request."""
_SMALL = 2**16
"""Bytes up to which a body is read faster than a thread begins to."""
MAX_PARTS, PART = 100, re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""Parts of a verdict, and their names: what trackers, files and terminals take unchanged."""


class TurnedAwayError(Exception):
    """A request that is refused before its body has been read; `allow` is the method that its path is asked by."""

    def __init__(self, message: str, status: HTTPStatus, allow: str | None = None) -> None:
        super().__init__(message)
        self.message, self.status, self.allow = message, status, allow


class Bodies:
    def __init__(self) -> None:
        self._large = asyncio.Semaphore(_LARGE_AT_ONCE)

    @asynccontextmanager
    async def of(self, http: web.BaseRequest, most: int = MAX_BODY) -> AsyncIterator[bytes]:
        """The whole body, of at most `most` bytes; the block ends when it is a request.

        Raises:
            TurnedAwayError: it is too large, compressed, or does not come.
            ConnectionError: the client is gone.
        """
        if any(each.strip().lower() != "identity" for each in http.headers.getall("content-encoding", ())):
            what = "the body has a Content-Encoding: send it uncompressed"
            raise TurnedAwayError(what, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)
        if (http.content_length or 0) > most:
            raise _too_large(most)
        if http.headers.get("expect", "").lower() == "100-continue":
            await http.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            http.writer.output_size = 0  # the answer itself has not begun
        begin, is_whole = await _read(http, min(most, _LARGE))
        if is_whole:
            yield begin
            return
        if most <= _LARGE:
            raise _too_large(most)
        async with self._large:
            rest, is_whole = await _read(http, most - len(begin))
            if not is_whole:
                raise _too_large(most)
            yield begin + rest


async def _read(http: web.BaseRequest, most: int) -> tuple[bytes, bool]:
    """The next bytes of a body, and whether it ends there; they are a little more than `most` if not."""
    parts, size = list[bytes](), 0
    try:
        async with asyncio.timeout(BODY_S):
            while part := await http.content.readany():
                parts.append(part)
                size += len(part)
                if size > most:
                    break
    except TimeoutError:
        what = f"the body did not come within {BODY_S:g} s"
        raise TurnedAwayError(what, HTTPStatus.REQUEST_TIMEOUT) from None
    except web.RequestPayloadError:
        raise TurnedAwayError("the body is not as its headers say", HTTPStatus.BAD_REQUEST) from None
    return b"".join(parts), size <= most


def _too_large(most: int) -> TurnedAwayError:
    what = f"the body is larger than {most} bytes, the limit of this endpoint"
    return TurnedAwayError(what, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


async def read(body: bytes, dialect: ModuleType, attempt: Attempt) -> Request:
    """The request of a body, read in a thread where that takes long.

    Raises:
        RefusedRequestError: it is no request, or asks for what cannot be honoured.
        TurnedAwayError: it has too many parts.
    """
    async with attempt.reading:
        if len(body) <= _SMALL:
            return _request(body, dialect, attempt)
        return await asyncio.to_thread(_request, body, dialect, attempt)


def _request(body: bytes, dialect: ModuleType, attempt: Attempt) -> Request:
    if sum(map(body.count, (b"{", b"[", b","))) > MAX_VALUES:
        what = f"the body has more than {MAX_VALUES} braces, brackets and commas, the limit of this endpoint"
        raise TurnedAwayError(what, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
    try:
        found: Any = values.loads(body)
    except ValueError as error:
        raise RefusedRequestError(f"the body is not JSON: {error}", "") from None
    except RecursionError:
        raise RefusedRequestError("the body is nested too deep", "") from None
    if not isinstance(found, Mapping):
        raise RefusedRequestError("the body is no object", "")
    try:
        request: Request = dialect.read(found, attempt.repeated)
        request.prepare()
    except RecursionError:
        raise RefusedRequestError("the body is nested too deep", "") from None
    return request


def judged(body: bytes) -> Verdict:
    """The verdict of `{"reward": 0.5, "parts": {"correct": 1}}`, where the parts may be missing.

    Raises:
        RefusedRequestError: the body is something else, or a number is too large.
    """
    try:
        read: Any = orjson.loads(body)
        if unknown := set(read) - {"reward", "parts"}:
            raise RefusedRequestError(f"'{min(unknown)}' is not known: 'reward' and 'parts' are", min(unknown))
        found = verdict(VerdictKind.VALUE, read["reward"], "", read.get("parts") or {})
    except MALFORMED:
        limits = f"numbers are at most {MAX_VALUE:g} in size, parts {MAX_PART:g}"
        what = 'a verdict is {"reward": NUMBER} or {"reward": NUMBER, "parts": {NAME: NUMBER}}'
        raise RefusedRequestError(f"{what}; {limits}", "reward") from None
    if len(found.parts) > MAX_PARTS or not all(map(PART.fullmatch, found.parts)):
        what = f"{MAX_PARTS} parts are allowed, with names of 1 to 100 of the letters a-z, A-Z, 0-9, _, - and ."
        raise RefusedRequestError(f"{what}, where - and . do not come first", "parts")
    return found
