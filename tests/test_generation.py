"""How the driver runs what generates."""

from __future__ import annotations

import asyncio

from slime.generation import result_of


class Samples:
    """Counts how often it is written down."""

    num_written = 0

    def __repr__(self) -> str:
        self.num_written += 1
        return "samples"


def test_a_result_is_not_written_down() -> None:
    samples = Samples()

    async def work() -> Samples:
        return samples

    with asyncio.Runner() as runner:
        assert result_of(runner, work()) is samples
    assert samples.num_written == 0, "of a step's samples it takes longer than to pack them"
