"""The gate in front of engines that generate for steps to come: it is closed while their weights change."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from slime.config.choices import Publish
from slime.engine_client.client import Engine, EngineClient
from slime.engine_client.engine_set import EngineSet
from slime.errors import NoAnswer
from slime.sampling.generate import Passed

ABORT_AGAIN_S = 0.5
"""A request on its way while the engine aborts is missed by that abort."""


class EngineGate:
    """A `slime.sampling.generate.Gate`.

    Args:
        publish: what becomes of those that are inside when it closes.
        patience_s: within which an aborted one is answered.
    """

    def __init__(self, engines: EngineSet, publish: Publish, patience_s: float) -> None:
        self._engines, self._publish, self._patience_s = engines, publish, patience_s
        self._is_open, self._is_empty = asyncio.Event(), asyncio.Event()
        self._is_open.set()
        self._is_empty.set()
        self._num_inside = self._num_closings = 0
        self.version = 0

    @property
    def keeps_keys(self) -> bool:
        return self._publish is Publish.keep

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any], **fields: Any) -> Passed:
        await self._is_open.wait()
        version, closings = self.version, self._num_closings
        self._num_inside += 1
        self._is_empty.clear()
        try:
            completion = await self._engines.generate(input_ids, sampling, **fields)
        finally:
            self._num_inside -= 1
            if not self._num_inside:
                self._is_empty.set()
        return Passed(completion, version, is_interrupted=self._num_closings > closings)

    async def close(self) -> None:
        self._is_open.clear()
        self._num_closings += 1
        if self._publish is Publish.abort:
            await self._abort()
        else:
            mode: Any = "retract" if self._publish is Publish.retract else "in_place"
            await self._engines.each(lambda engine: _alone(engine).pause(mode))

    async def open(self, version: int) -> None:
        self.version = version
        if self._publish is not Publish.abort:
            for engine in self._engines:
                _alone(engine).cache_key = str(version) if self.keeps_keys else None
            await self._engines.each(lambda engine: _alone(engine).resume())
        self._is_open.set()

    async def _abort(self) -> None:
        now = asyncio.get_running_loop().time
        deadline = now() + self._patience_s
        while self._num_inside:
            await self._engines.abort_all()
            try:
                async with asyncio.timeout(ABORT_AGAIN_S):
                    await self._is_empty.wait()
            except TimeoutError:
                if now() > deadline:
                    what = f"{self._num_inside} aborted requests were not answered in {self._patience_s:g} s"
                    todo = "See the engines' logs. If they were only slow, raise rollout.request_timeout_s."
                    raise NoAnswer(what, where="the engines", todo=todo) from None


def _alone(engine: Engine) -> EngineClient:
    assert isinstance(engine, EngineClient), "engines that work in pairs only abort"
    return engine
