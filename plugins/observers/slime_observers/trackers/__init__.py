"""The trackers that a run has chosen (`observe.trackers`), as one subscriber of its events."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.events import Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"trackers": _trackers}


def _trackers(run: TrackedRun) -> Subscriber:
    from slime import plugins
    from slime_observers.trackers.handing import Trackers

    options = run.config.get("observe", {}).get("trackers", {})
    installed = plugins.load().trackers
    return Trackers({name: installed.create(name, **own) for name, own in options.items()}).start(run)
