"""The HTTP server of the endpoint: it lives while there are attempts, in their event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from types import ModuleType

import orjson
from aiohttp import web

from slime.contracts import Responder
from slime_agents.endpoint import paths, responses
from slime_agents.endpoint.attempt import Attempt
from slime_agents.endpoint.bodies import MAX_VERDICT, Bodies, TurnedAwayError, judged, read
from slime_agents.endpoint.door import Connection, Door
from slime_agents.endpoint.hearing import Hearing
from slime_agents.endpoint.said import RefusedRequestError, Request
from slime_agents.endpoint.tree import Asked

STREAM_AFTER_S = 10.0
"""Seconds after which a stream begins although there is no answer yet, and how often it then says so. An answer that is
there before can still be an error with its status."""
MODEL = "policy"
"""The model's name in the list of models. Every name is accepted."""
_JSON = "application/json"


class EndpointServer:
    """Tells attempts apart by their keys; `structured` as `EndpointOptions.structured`."""

    def __init__(self, host: str, hearing: Hearing, structured: str) -> None:
        self._host, self._hearing, self._structured = host, hearing, structured
        self._attempts: dict[str, Attempt] = {}
        self._closed: set[str] = set()
        self._starting: asyncio.Task[tuple[Door, int]] | None = None
        self._stopping: set[asyncio.Task[None]] = set()
        self._bodies: Bodies

    @asynccontextmanager
    async def attempt(self, model: Responder) -> AsyncIterator[tuple[Attempt, str]]:
        """An attempt that can be asked until the end of the block, and its URL, without the API's `/v1`."""
        attempt = Attempt(model, self._hearing, self._structured)
        self._attempts[attempt.key] = attempt
        self._starting = self._starting or asyncio.create_task(self._start())
        door: Door | None = None
        try:
            door, port = await asyncio.shield(self._starting)
            host = f"[{self._host}]" if ":" in self._host else self._host
            yield attempt, f"http://{host}:{port}/{attempt.key}"
        finally:
            attempt.close()
            del self._attempts[attempt.key]
            self._closed.add(attempt.key)
            if door:
                door.forget(attempt.key)
            if not self._attempts:
                self._stop()

    async def _start(self) -> tuple[Door, int]:
        self._bodies, door = Bodies(), Door(self._answer)
        return door, await door.open(self._host)

    def _stop(self) -> None:
        starting, self._starting = self._starting, None
        if starting and starting.done() and not starting.cancelled() and not starting.exception():
            door, _ = starting.result()
            door.tell()
            stopping = asyncio.create_task(door.close())
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
        elif starting:
            starting.cancel()
        self._closed.clear()

    async def _answer(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer a request: the key first, and not one byte of the body before it."""
        key, what, name, dialect = paths.target(http)
        connection = http.protocol
        assert isinstance(connection, Connection), "the door makes them"
        try:
            attempt = self._find(http, key, connection)
            paths.check(what, http)
            if what in (paths.MODELS, paths.MODEL):
                return _models(name)
            if what == paths.VERDICT:
                return await self._verdict(http, attempt)
            if what in (paths.COUNT, paths.COUNT_ITEMS):
                return await self._counted(http, dialect, attempt)
            if what == paths.RESPONSE:
                return _json(responses.named(name, attempt.repeated, is_deleted=http.method == "DELETE"))
            return await self._answered(http, dialect, attempt)
        except RefusedRequestError as error:
            return _refusal(dialect, error)
        except TurnedAwayError as error:
            response = _fault(dialect, error.message, error.status)
            if error.allow:
                response.headers["Allow"] = error.allow
            response.force_close()
            return response
        except ConnectionError:  # the client is gone
            return web.Response(status=HTTPStatus.BAD_REQUEST)

    def _find(self, http: web.BaseRequest, named: str | None, connection: Connection) -> Attempt:
        bearer = http.headers.get("authorization", "").removeprefix("Bearer ").strip()
        keys = [named, bearer, http.headers.get("x-api-key")]
        for key in keys:
            if key in self._attempts:
                assert self._starting, "somebody came through the door"
                self._starting.result()[0].admit(connection, key)
                return self._attempts[key]
        connection.turn_away()
        if any(key in self._closed for key in keys):
            raise TurnedAwayError("the attempt of this key has ended", HTTPStatus.GONE)
        raise TurnedAwayError("there is no attempt with this key", HTTPStatus.UNAUTHORIZED)

    async def _verdict(self, http: web.BaseRequest, attempt: Attempt) -> web.Response:
        async with self._bodies.of(http, MAX_VERDICT) as body:
            attempt.verdict = judged(body)
        return web.Response(status=HTTPStatus.NO_CONTENT)

    async def _counted(self, http: web.BaseRequest, dialect: ModuleType, attempt: Attempt) -> web.Response:
        """The number of tokens that the model would read, were it asked this."""
        async with self._bodies.of(http) as body:
            request = await read(body, dialect, attempt)
        return _json(orjson.dumps({"object": "response.input_tokens", "input_tokens": await attempt.count(request)}))

    async def _answered(self, http: web.BaseRequest, dialect: ModuleType, attempt: Attempt) -> web.StreamResponse:
        async with self._bodies.of(http) as body:
            request = await read(body, dialect, attempt)
            del body
        asked = attempt.ask(request, _is_repeated(http))
        asked.num_waiting += 1
        try:
            return await _told(http, dialect, request, asked)
        finally:
            asked.num_waiting -= 1


def _models(name: str) -> web.Response:
    """The one model by any name, as every name is accepted; or the list of models."""
    model = {"id": name or MODEL, "object": "model", "type": "model", "display_name": name or MODEL, "created": 0,
             "created_at": "1970-01-01T00:00:00Z", "owned_by": "slime"}  # fmt: skip
    if name:
        return _json(orjson.dumps(model))
    listed = {"object": "list", "data": [model], "has_more": False, "first_id": MODEL, "last_id": MODEL}
    return _json(orjson.dumps(listed))


def _is_repeated(http: web.BaseRequest) -> bool | None:
    """The word of OpenAI's and Anthropic's SDKs on whether a request was sent before."""
    count = http.headers.get("x-stainless-retry-count", "")
    return int(count) > 0 if count.isdecimal() else None


async def _told(http: web.BaseRequest, dialect: ModuleType, request: Request, asked: Asked) -> web.StreamResponse:
    work = asked.work
    if not work.done():
        await asyncio.wait({work}, timeout=STREAM_AFTER_S if request.is_streamed else None)
    if work.done() and (fault := _fault_of(dialect, asked)):
        return fault
    if request.is_streamed:
        return await _streamed(http, dialect, request, asked)
    body = dialect.whole(request, work.result())
    asked.is_heard |= _is_there(http)
    return _json(body)


async def _streamed(http: web.BaseRequest, dialect: ModuleType, request: Request, asked: Asked) -> web.StreamResponse:
    response, work = web.StreamResponse(headers={"Content-Type": "text/event-stream"}), asked.work
    try:
        await response.prepare(http)
        while not work.done():
            await response.write(dialect.KEEP_ALIVE)
            await asyncio.wait({work}, timeout=STREAM_AFTER_S)
        asked.is_heard |= _is_there(http) and not work.cancelled() and not work.exception()
        await response.write(b"".join(_events(dialect, request, asked)))
    except ConnectionError:  # the client is gone, and nobody else reads this
        pass
    return response


def _is_there(http: web.BaseRequest) -> bool:
    """The client has kept its connection."""
    return http.transport is not None and not http.transport.is_closing()


def _events(dialect: ModuleType, request: Request, asked: Asked) -> Iterator[bytes]:
    if fault := _fault_of(dialect, asked):
        assert isinstance(fault.body, bytes), "a fault is JSON"
        yield dialect.fault_event(orjson.loads(fault.body)["error"]["message"], fault.status)
    else:
        yield from dialect.events(request, asked.work.result())


def _fault_of(dialect: ModuleType, asked: Asked) -> web.Response | None:
    """The error in place of an answer."""
    if asked.work.cancelled():
        return _fault(dialect, "the attempt has ended", HTTPStatus.GONE)
    error = asked.work.exception()
    if isinstance(error, RefusedRequestError):
        return _refusal(dialect, error)
    return _fault(dialect, "the attempt cannot go on", HTTPStatus.SERVICE_UNAVAILABLE) if error else None


def _refusal(dialect: ModuleType, error: RefusedRequestError) -> web.Response:
    body = dialect.fault(error.message, HTTPStatus.BAD_REQUEST, error.param or None, error.code)
    return _json(body, HTTPStatus.BAD_REQUEST)


def _fault(dialect: ModuleType, message: str, status: HTTPStatus) -> web.Response:
    # An SDK would repeat what is 500 or more; nothing here becomes better by that.
    return _json(dialect.fault(message, status), status, {"x-should-retry": "false"})


def _json(body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> web.Response:
    return web.Response(body=body, status=status, headers=headers, content_type=_JSON)
