"""A teacher that an SGLang server has: asked by HTTP for the log-probs of tokens that are there already.

`POST /generate` with `max_new_tokens` 0 computes a sequence once. With `logprob_start_len` s it returns a log-prob for
each token behind the s-th, all of them under softmax(logits), whatever `temperature` says, and with `top_logprobs_num`
k also the k most probable tokens in the place of each.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from slime.errors import SlimeError
from slime.net import Endpoint
from slime.types import TrainSample
from slime_algorithms.distillation.teacher import TOKENIZER, has_same_tokens, last_token

MAX_REQUESTS = 64
"""At a time; the server queues what it does not compute at once."""
TIMEOUT_S = 600.0
"""For one request, its time in the queue included."""
TRIES = 3
"""Of a request whose connection broke off: a server that is started again meanwhile costs the run nothing."""
PAUSE_S = 5.0

Columns = tuple[np.ndarray, ...]
"""Of a sample: ([num_response_tokens] fp32 log-probs,), or ([num_response_tokens, k] int32 ids, and fp32 log-probs)."""

log = logging.getLogger(__name__)


def server_of(engine: Endpoint) -> Server:
    """An engine of a frozen group."""
    return Server(engine.url, headers=engine.headers, where="algo.options.teacher_engines")


def asked_of(servers: Sequence[Server], samples: Sequence[TrainSample], top: int | None = None) -> list[Columns]:
    """`Server.ask_all`, of several servers with the same teacher."""

    async def ask() -> list[list[Columns]]:
        return await asyncio.gather(
            *(each.ask_all(samples[at :: len(servers)], top) for at, each in enumerate(servers))
        )

    found = asyncio.run(ask())
    return [found[number % len(servers)][number // len(servers)] for number in range(len(samples))]


class Server:
    """An SGLang server with a teacher.

    Args:
        key_env: environment variable with the key that it asks for; None: it asks for none.
        headers: of every request.
        where: the key that names it.

    Raises (every method):
        SlimeError: the variable is not set, or the server does not answer, or it refuses what it is asked.
    """

    def __init__(
        self,
        url: str,
        key_env: str | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        where: str = "algo.options.teacher_url",
    ) -> None:
        self._url, self._key_env, self._headers, self._where = url.rstrip("/"), key_env, headers or {}, where

    def require_tokens_of(self, tokenizer: Path) -> None:
        """See that the server answers and has the tokens of the tokenizer in this folder: all of them where the folder
        of its own can be read here, and else the last one."""
        asyncio.run(self._require(tokenizer / TOKENIZER))

    async def _require(self, model: Path) -> None:
        todo = "Serve a teacher with the model's vocabulary."
        async with self._session() as session:
            info = await self._answer(session, "GET", "/model_info", None, tries=1)
            folder = Path(str(info.get("tokenizer_path")))
            if not has_same_tokens(folder / TOKENIZER, model):
                raise self._error(f"the teacher's tokenizer, {folder}, has other tokens than the model's", todo)
            # SGLang refuses to tell of a token beyond its vocabulary. One in a sequence would end the server.
            body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 0}, "return_logprob": True}
            body |= {"logprob_start_len": 0, "token_ids_logprob": [last_token(model)]}
            await self._answer(session, "POST", "/generate", body, todo=todo)

    async def ask_all(self, samples: Sequence[TrainSample], top: int | None = None) -> list[Columns]:
        """By sample, in nats: of each token its log-prob, or of the `top` most probable tokens in its place the ids and
        log-probs; 0 for the first token of all, which is not predicted."""
        turns = asyncio.Semaphore(MAX_REQUESTS)

        async def ask(sample: TrainSample) -> Columns:
            async with turns:
                return await self._ask(session, sample, top)

        async with self._session() as session:
            return await asyncio.gather(*map(ask, samples))

    def _session(self) -> aiohttp.ClientSession:
        """Each request has a connection of its own: a server may close an idle one while it is taken again."""
        headers = {**self._headers}
        if self._key_env is not None:
            if (key := os.environ.get(self._key_env)) is None:
                where, todo = "algo.options.teacher_key_env", "Set it where slime is started."
                raise SlimeError(f"the environment has no variable '{self._key_env}'", where=where, todo=todo)
            headers["Authorization"] = f"Bearer {key}"
        connector, timeout = aiohttp.TCPConnector(limit=0, force_close=True), aiohttp.ClientTimeout(total=TIMEOUT_S)
        return aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers)

    async def _ask(self, session: aiohttp.ClientSession, sample: TrainSample, top: int | None) -> Columns:
        tokens, count = sample.tokens.tolist(), sample.num_response_tokens
        start = max(0, len(tokens) - count - 1)
        body = {"input_ids": tokens, "sampling_params": {"max_new_tokens": 0, "temperature": 1.0}}
        body |= {"return_logprob": True, "logprob_start_len": start, "top_logprobs_num": top or 0}
        answer = await self._answer(session, "POST", "/generate", body)
        found = answer["meta_info"]["input_token_logprobs"]
        # SGLang writes 0 for the last id of the vocabulary, and for those beyond it.
        if len(found) != len(tokens) - start or any(
            told not in (0, asked) for (_, told, *_), asked in zip(found, tokens[start:], strict=True)
        ):
            raise self._error("it answered about other tokens", "Serve the teacher with SGLang 0.5.")
        if top is None:
            logprobs = _last([_number(value) for value, *_ in found[1:]], (count,))
            columns: Columns = (logprobs,)
        else:
            places = answer["meta_info"]["input_top_logprobs"][1:]
            if len(places) != len(found) - 1 or any(len(place) != top for place in places):
                what = f"it did not name {top} tokens in each place"
                raise self._error(what, "Lower algo.options.teacher_top_k, or serve the teacher with SGLang 0.5.")
            logprobs = _last([[_number(value) for value, *_ in place] for place in places], (count, top))
            ids = _last([[told for _, told, *_ in place] for place in places], (count, top), np.int32)
            columns = (ids, logprobs)
        if not np.isfinite(logprobs[sample.loss_mask != 0]).all():
            what = "a sampled token" if top is None else f"one of the {top} most probable tokens"
            raise self._error(f"{what} has no finite log-prob", "See the server's log.")
        return columns

    async def _answer(
        self,
        session: aiohttp.ClientSession,
        method: str,
        path: str,
        body: Any,
        *,
        tries: int = TRIES,
        todo: str = "See the server's log.",
    ) -> Any:
        """The parsed answer. A connection that breaks off is tried again; what to do where it is refused is `todo`."""
        for left in reversed(range(tries)):
            try:
                async with session.request(method, self._url + path, json=body) as response:
                    text = await response.text()
                if response.status == HTTPStatus.OK:
                    return json.loads(text)
                what = f"{path} was refused with status {response.status}: {text[:300]}"
                raise self._error(what, todo)
            except (aiohttp.ClientError, TimeoutError) as error:
                if not left:
                    todo = "Start the server, or correct the address; the same command continues the run."
                    raise self._error(f"no answer to {path}: {error or 'time is up'}", todo) from error
                log.warning("%s%s: %s; asked again in %g s", self._url, path, error, PAUSE_S)
                await asyncio.sleep(PAUSE_S)
        raise AssertionError("the last try returns or raises")

    def _error(self, what: str, todo: str) -> SlimeError:
        return SlimeError(what, where=f"{self._where}={self._url}", todo=todo)


def _number(value: float | None) -> float:
    """JSON has null for what is not finite."""
    return math.nan if value is None else value


def _last(values: Sequence[Any], shape: tuple[int, ...], dtype: type = np.float32) -> np.ndarray:
    """An array of this shape that ends with `values`, and begins with 0."""
    found: np.ndarray = np.zeros(shape, dtype)
    if values:
        found[shape[0] - len(values) :] = values
    return found
