"""A watch over learning: it warns of what comes before a collapse, and stops a run whose rewards say nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.events import Event, Events, Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun


class Learning:
    """A subscriber of every session: it needs the bus to stop a run."""

    every_session = True

    def __init__(self, run: TrackedRun, events: Events) -> None:
        from slime_observers.learning.watch import LearningWatch

        observe, sampling = run.config.get("observe", {}), run.config.get("rollout", {}).get("sampling", {})
        limits = observe.get("zero_variance_steps", 0), sampling.get("max_response_tokens", 0)
        self._watch = LearningWatch(*limits, stop=events.stop)

    def __call__(self, event: Event) -> None:
        self._watch(event)


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"learning": Learning}
