"""The console of a run: lines while it starts, a bar or lines while it works, `summary.txt` at its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.events import Ended, Event, Events, Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun


class Console:
    """Prints to standard output; a subscriber of every session."""

    every_session = True

    def __init__(self, run: TrackedRun, events: Events) -> None:
        from slime_observers.console.progress import ProgressLine
        from slime_observers.console.startup import Startup

        self._folder = run.folder
        self._startup, self._progress = Startup(), ProgressLine(live=run.config.get("run", {}).get("progress", True))

    def __call__(self, event: Event) -> None:
        self._startup(event)
        self._progress(event)
        if isinstance(event, Ended) and event.status == "finished":
            from slime.printable import printable
            from slime_observers.console import summary

            print(printable(f"\n{summary.write(self._folder)}"), end="")


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"console": Console}
