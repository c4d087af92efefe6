"""The console of a run, whatever happens in it."""

from __future__ import annotations

from slime.events import Ended, Event, Events
from slime.printable import printable
from slime.types import TrackedRun
from slime_observers.console import summary
from slime_observers.console.progress import ProgressLine
from slime_observers.console.startup import Startup


class Console:
    """Prints to standard output; a subscriber of every session."""

    def __init__(self, run: TrackedRun, events: Events) -> None:
        self._folder = run.folder
        self._startup, self._progress = Startup(), ProgressLine(live=run.config.get("run", {}).get("progress", True))

    def __call__(self, event: Event) -> None:
        self._startup(event)
        self._progress(event)
        if isinstance(event, Ended) and event.status == "finished":
            print(printable(f"\n{summary.write(self._folder)}"), end="")
