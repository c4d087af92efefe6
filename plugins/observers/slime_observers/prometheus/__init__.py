"""Metrics of a run for Prometheus, which scrapes them where `observe.prometheus` says."""

from __future__ import annotations

from slime.events import Event, Subscriber
from slime.types import TrackedRun


def of_run(run: TrackedRun) -> Subscriber:
    """The exporter, if the run asks for it; who did not needs no package of it."""
    if (address := run.config.get("observe", {}).get("prometheus")) is None:
        return _nothing
    from slime_observers.prometheus.exporter import Exporter

    return Exporter(run, str(address))


def _nothing(event: Event) -> None:
    """Nobody asked."""
