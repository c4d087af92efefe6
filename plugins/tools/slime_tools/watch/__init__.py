"""People watch runs: the live page (`slime watch`), the same page frozen (`slime report`, and at the end of a run), the
list of runs (`slime runs`), samples in the terminal (`slime samples`), and what a page needs that no other file has."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.contracts import VerbFactory
from slime.events import Complete, Event, Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun

REPORT = "report.html"


class Watch:
    """Keeps what the live page needs, and writes `report.html` and `reward.png` once the last step of a run is done."""

    def __init__(self, run: TrackedRun) -> None:
        from slime_tools.watch.diary import Diary

        self._folder = run.folder
        self._diary = Diary(run.folder)

    def __call__(self, event: Event) -> None:
        self._diary(event)
        if isinstance(event, Complete):
            from slime_tools.watch import frozen, picture
            from slime_tools.watch.view import RunView

            picture.write(self._folder)
            frozen.write(self._folder / REPORT, [RunView(self._folder, "finished")])


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"watch": Watch}


@hookimpl
def slime_verbs() -> Mapping[str, VerbFactory]:
    return {
        "watch": VerbFactory("a live page of a run, or of several", "slime_tools.watch.watch"),
        "report": VerbFactory("the same page, frozen into one file", "slime_tools.watch.report"),
        "samples": VerbFactory("what the model answered, step by step", "slime_tools.watch.samples"),
        "runs": VerbFactory("the runs of a folder: state, step, result", "slime_tools.watch.runs"),
    }
