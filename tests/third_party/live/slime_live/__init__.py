"""`live.json` in the run directory: the stage, the step and the phase that a run is in, for a page that polls it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

from slime.events import Ended, Event, Phase, StageBegan, Step, Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun


class Live:
    def __init__(self, run: TrackedRun) -> None:
        self._path = run.folder / "live.json"
        self._state: dict[str, Any] = {"run": run.name}

    def __call__(self, event: Event) -> None:
        match event:
            case StageBegan(stage, total, done):
                self._say(stage=stage, step=done, total=total)
            case Phase(name, done, total):
                self._say(phase=name if done is None else f"{name} {done}/{total}")
            case Step(_, step, values):
                self._say(step=step, phase="", reward=values.get("rollout/reward_mean"))
            case Ended(status):
                self._say(phase=status)

    def _say(self, **news: Any) -> None:
        self._state |= news
        aside = self._path.with_suffix(".new")
        aside.write_text(json.dumps(self._state))
        os.replace(aside, self._path)


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"live": Live}
