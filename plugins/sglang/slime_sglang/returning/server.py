"""One server that somebody else started, as the driver sees it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from slime.engine_client.client import Completion, EngineGone, FinishReason
from slime.errors import SlimeError
from slime.net import Endpoint, Secret
from slime.weights.publisher.engine_link import EngineLink
from slime_sglang.disk.follow import KEY
from slime_sglang.engine.driver.client import SGLangClient


class _Client(SGLangClient):
    """Requests to a server that may end, or start again, whenever its owner likes: others take them then."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        super().__init__(endpoint, timeout_s)
        self._num_aborts = 0

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], /, **fields: Any) -> Completion:
        num_aborts = self._num_aborts
        completion = await super().generate(input_ids, sampling, **fields)
        if completion.finish_reason is FinishReason.ABORT and self._num_aborts == num_aborts:
            raise self._error("it aborted a request by itself", "It is shutting down, it seems.", EngineGone)
        return completion

    async def abort_all(self) -> None:
        self._num_aborts += 1
        await super().abort_all()

    def _version(self, text: str) -> int:
        if not text.isdecimal():
            raise self._error(f"it serves '{text}' weights", "It was started again, it seems.", EngineGone)
        return int(text)


class OutsideLink(EngineLink):
    """The driver's connection to a server, whose log lies with its owner."""

    @property
    def _where(self) -> str:
        return f"engine {self.url}"

    def _error(self, what: str, kind: type[SlimeError] = SlimeError) -> SlimeError:
        return kind(what, where=self._where, todo="See its log, where it was started.")


class OutsideServer:
    """One server.

    Attributes:
        client: for the sampler's requests.
        serves: it takes requests.
        answers: it was there when it was asked last.
        is_taking: a version is on its way into it.
        holds, refused: names of the version that it took last, and of one that it did not take.
        left_at: when it stopped taking requests, in seconds of `time.monotonic`; None: it has had none.
        problem: why it takes no requests, as it was told.
    """

    def __init__(self, url: str, timeout_s: float) -> None:
        self.endpoint = Endpoint(url, Secret(os.environ.get(KEY, "")))
        self.client = _Client(self.endpoint, timeout_s)
        self.serves = self.answers = self.is_taking = False
        self.holds = self.refused = ""
        self.left_at: float | None = None
        self.problem: SlimeError | None = None
