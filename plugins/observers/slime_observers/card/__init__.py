"""The model card of a run's export."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from slime.events import Complete, Event, Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun


class ModelCard:
    """Writes `export/README.md` once the model is exported."""

    def __init__(self, run: TrackedRun) -> None:
        self._run = run

    def __call__(self, event: Event) -> None:
        if isinstance(event, Complete):
            from slime_observers.card.card import write

            write(self._run.folder, self._run.folder / "export", sys.argv[1:])


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"card": ModelCard}
