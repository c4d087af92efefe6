"""A program that does wrong where the prompt's number says so; in real workers, as distribution `program-zoo`."""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
import time
from pathlib import Path
from typing import Any

from slime.hookspecs import hookimpl
from slime.types import Verdict

METADATA = "Metadata-Version: 2.1\nName: program-zoo\nVersion: 1.0\n"


def install(site: Path) -> None:
    """Make `site` a folder that has this module as a distribution, once it is on `sys.path`."""
    (site / "faulty.py").symlink_to(Path(__file__).resolve())
    info = site / "program_zoo-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    (info / "entry_points.txt").write_text("[slime]\nprograms = faulty\n")


class Faulty:
    """Says two things; between them attempt 1 of every prompt whose number is listed does what is wrong.

    Args:
        faults: what, by the prompt's number.
    """

    def __init__(self, faults: dict[str, str], folder: str = "") -> None:
        self._faults, self._folder = faults, Path(folder)

    async def run(self, task: Any, model: Any) -> Verdict | None:
        conversation = model.conversation()
        await conversation.turn()
        name = self._faults.get(task.prompt.id.partition("/")[2]) if task.attempt == 1 else None
        verdict: Verdict | None = None
        if name:
            verdict = await getattr(self, name)(model)
        await conversation.turn({"role": "user", "content": "go on"})
        return verdict

    async def raises(self, _: Any) -> None:
        raise ValueError("no more")

    async def exits(self, _: Any) -> None:
        sys.exit(3)

    async def vanishes(self, _: Any) -> None:
        os._exit(3)

    async def crashes(self, _: Any) -> None:
        ctypes.string_at(0)

    async def hangs(self, _: Any) -> None:
        await asyncio.sleep(3600)

    async def blocks(self, _: Any) -> None:
        time.sleep(3600)

    async def floods(self, _: Any) -> None:
        hoard = []
        while True:
            hoard.append(bytes(1 << 20))

    async def forks(self, _: Any) -> None:
        while True:
            if not os.fork():
                time.sleep(3600)

    async def tells_no_json(self, model: Any) -> None:
        await model.conversation().turn({"role": "user", "content": object()})

    async def forges(self, _: Any) -> Verdict:
        return Verdict.of(float("nan"))

    async def loses_its_worker(self, _: Any) -> None:
        """Once: by the end of its guard."""
        try:
            (self._folder / "lost").mkdir()
        except FileExistsError:
            return
        os.kill(os.getppid(), 9)

    async def asks_at_once(self, model: Any) -> Verdict:
        conversations = [model.conversation() for _ in range(3)]
        turns = await asyncio.gather(*(each.turn() for each in conversations))
        branch = conversations[0].branch(1)
        await branch.turn({"role": "user", "content": "and then?"})
        model.note("asked", len(turns))
        assert model.rendered([{"role": "user", "content": "blue"}]).count("blue") == 1
        return Verdict.of(sum(bool(turn.text) for turn in turns))


@hookimpl
def slime_programs() -> Any:
    return {"faulty": Faulty}
