"""`samples/` and `replay/` of a run directory: the model's responses, a file a step, and functions that read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.events import Event, Events, Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun


class Samples:
    """Writes the samples of every session, as far as `observe.samples_mb` wants them."""

    every_session = True

    def __init__(self, run: TrackedRun, events: Events) -> None:
        from slime_observers.samples.log import SampleLog

        limit_mb = run.config.get("observe", {}).get("samples_mb", 0.0)
        self._log = SampleLog(run.folder / "samples", limit_mb, events.publish)

    def __call__(self, event: Event) -> None:
        self._log(event)


def _groups(run: TrackedRun) -> Subscriber:
    """Writes what `slime replay` reads, as far as `observe.replay_mb` wants it."""
    from slime_observers.samples.groups import GroupLog

    return GroupLog(run.folder, run.config.get("observe", {}).get("replay_mb", 0.0))


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"samples": Samples, "groups": _groups}
