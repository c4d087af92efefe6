"""Work that blocks, beside an event loop that turns."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from slime.sampling.held import beside


def test_the_loop_turns_meanwhile() -> None:
    seen = []
    may_end = threading.Event()

    async def main() -> str:
        async def tick() -> None:
            for number in range(3):
                seen.append(number)
                await asyncio.sleep(0)
            may_end.set()

        ticking = asyncio.ensure_future(tick())
        found = await beside(lambda: f"ended: {may_end.wait(10)}")
        await ticking
        return found

    assert asyncio.run(main()) == "ended: True"
    assert seen == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError("wrong"), SystemExit(3), RuntimeError("too")])
def test_what_it_raises_is_raised(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        asyncio.run(beside(work))
    assert raised.value is error


def test_nobody_waits_for_it_who_is_cancelled() -> None:
    may_end = threading.Event()

    async def main() -> None:
        async with asyncio.timeout(0.05):
            await beside(may_end.wait)

    start = time.monotonic()
    with pytest.raises(TimeoutError):
        asyncio.run(main())
    assert time.monotonic() - start < 60
    may_end.set()
