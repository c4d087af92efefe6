"""The subscribers that plugins bring: each is told of a session's events, and none can stop it once it has begun."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from slime.errors import SlimeError
from slime.events import Event, Subscriber
from slime.time_limit import FAILURES, failure, within

if TYPE_CHECKING:
    from slime.events import Events
    from slime.plugins import Plugins
    from slime.registry import Contribution
    from slime.types import TrackedRun

PATIENCE_S = 60.0
"""Time of a subscriber for its factory, and for an event."""

log = logging.getLogger(__name__)


def subscribers(
    installed: Plugins, run: TrackedRun, events: Events, *, every_session: bool = False
) -> list[Subscriber]:
    """The installed subscribers of runs that train, or of every session, under guard. Raises SlimeError if a factory
    raises, takes too long, or returns something that cannot be called."""
    given = {"run": run, "events": events} if every_session else {"run": run}
    wanted = [each for each in installed.subscribers if getattr(each.factory, "every_session", False) == every_session]
    return [_Guarded(chosen.name, _made(chosen, given)) for chosen in wanted]


def _made(chosen: Contribution, keywords: Mapping[str, object]) -> Subscriber:
    where = f"subscriber '{chosen.name}' of {chosen.distribution} {chosen.version}"
    todo = f"Upgrade it ('pip install -U {chosen.distribution}'), or remove it ('pip uninstall {chosen.distribution}')."
    try:
        with within(PATIENCE_S):
            made: Subscriber = chosen.factory(**keywords)
    except SlimeError:
        raise
    except FAILURES as error:
        raise SlimeError(f"it does not start ({failure(error)})", where=where, todo=todo) from error
    if not callable(made):
        raise SlimeError(f"its factory returned {made!r:.80}, not a function of an event", where=where, todo=todo)
    return made


class _Guarded:
    """One subscriber. After its first failure it is told nothing more: what it shows would have a gap."""

    def __init__(self, name: str, subscriber: Subscriber) -> None:
        self._name, self._subscriber = name, subscriber
        self._failed = False

    def __call__(self, event: Event) -> None:
        if self._failed:
            return
        try:
            with within(PATIENCE_S):
                self._subscriber(event)
        except FAILURES as error:
            self._failed = True
            what = "subscriber %s failed at %s (%s): the run goes on without it"
            log.warning(what, self._name, type(event).__name__, failure(error))
