"""Metrics of a run for Prometheus, which scrapes them where `observe.prometheus` says."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from slime.events import Event, Subscriber
from slime.hookspecs import hookimpl
from slime.types import TrackedRun


def _prometheus(run: TrackedRun) -> Subscriber:
    address = run.config.get("observe", {}).get("prometheus")
    if address is None:
        return _nothing
    from slime_observers.prometheus.exporter import Exporter

    return Exporter(run, str(address))


def _nothing(event: Event) -> None:
    """Who did not ask for the exporter needs no package of it."""


@hookimpl
def slime_subscribers() -> Mapping[str, Callable[..., Subscriber]]:
    return {"prometheus": _prometheus}
