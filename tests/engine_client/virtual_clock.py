"""Hours of sampling in a second: an event loop whose clock jumps to the next timer, and an engine that lives by it.

For what depends on how long responses take. The loop, the pipeline and the buffer around it are the real ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from slime.engine_client.client import Completion, FinishReason


class VirtualLoop(asyncio.SelectorEventLoop):
    """Never waits: when nothing else is to be done, it is as late as its earliest timer says."""

    _now = 0.0

    def time(self) -> float:
        return self._now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self._now = max(self._now, self._scheduled[0].when())
        super()._run_once()


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run` on a virtual clock."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


class VirtualEngine:
    """Decodes one token a second for every request, however many there are, until the response's own length.

    Args:
        length: tokens of the response to (prompt token, sampling seed), end token included.
        end_token: the last token of each.
    """

    url, num_generating = "virtual", 1

    def __init__(self, length: Callable[[int, int], int], end_token: int = 0) -> None:
        self._length, self._end_token = length, end_token
        self._aborted = asyncio.Event()
        self.version = 0
        self.num_tokens = self.num_requests = 0
        self.hangs_at = float("inf")
        """Time of the clock: what is not answered by then never is."""

    async def generate(self, input_ids: Sequence[int], sampling: Mapping[str, Any]) -> Completion:
        self.num_requests += 1
        try:
            return await self._completion(input_ids, sampling)
        finally:
            self.num_requests -= 1

    async def _completion(self, input_ids: Sequence[int], sampling: Mapping[str, Any]) -> Completion:
        begun, done = asyncio.get_running_loop().time(), len(input_ids) - 1
        rest = self._length(input_ids[0], sampling["sampling_seed"]) - done
        wanted = min(rest, sampling["max_new_tokens"])
        reason = FinishReason.STOP if wanted == rest else FinishReason.LENGTH
        if begun + wanted > self.hangs_at:
            await asyncio.Event().wait()
        try:
            await asyncio.wait_for(self._aborted.wait(), wanted)
            wanted, reason = int(asyncio.get_running_loop().time() - begun), FinishReason.ABORT
        except TimeoutError:
            pass
        tokens = [1] * wanted
        if wanted == rest:
            tokens[-1] = self._end_token
        self.num_tokens += wanted
        return Completion(tokens, [-1.0] * wanted, reason, self.version, 0, 0)

    async def load(self) -> tuple[int, int]:
        return self.num_requests, int(self.num_requests * min(asyncio.get_running_loop().time(), self.hangs_at))

    async def abort_all(self) -> None:
        self._aborted.set()
        self._aborted = asyncio.Event()
