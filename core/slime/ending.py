"""An end that is asked for while a run lasts: by SIGTERM, SIGUSR2 or `run.stop_at`. It comes after the step, with a
checkpoint."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from types import FrameType

from slime.errors import SlimeError, Stopped
from slime.events import Event, Events, Step

BEGAN = time.time()
"""The start of the command, as nearly as a module without psutil knows it, which planning does without."""
SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
FROM_NOW = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?")


def unix_seconds(text: str) -> float:
    """The time that `run.stop_at` names.

    Args:
        text: Unix seconds; `3h50m`, `90m` or `45s` from the start of the command; or a date and time of ISO 8601,
            local where it names no offset.

    Raises:
        SlimeError: it is none of these.
    """
    if text.isdecimal():
        return float(text)
    if text and (match := FROM_NOW.fullmatch(text)):
        hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return BEGAN + 3600 * hours + 60 * minutes + seconds
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        todo = "Give Unix seconds, a duration such as 3h50m, or a time such as 2030-01-31T08:00."
        raise SlimeError(f"'{text}' is no time", where="run.stop_at", todo=todo) from None


def stop_problems(stop_at: str | None) -> Iterator[SlimeError]:
    """What is wrong with `run.stop_at`."""
    try:
        if stop_at is not None and unix_seconds(stop_at) < time.time():
            yield SlimeError(f"'{stop_at}' is over", where="run.stop_at", todo="Name a later time, or null.")
    except SlimeError as problem:
        yield problem


def hold_back() -> None:
    """Keep SIGUSR2 waiting, in this process and all that it starts, until `in_order`. A scheduler may send it to every
    process of a job, and its default is to end them."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])


@contextmanager
def in_order(events: Events, stop_at: str | None) -> Iterator[None]:
    """A signal in the block has the run stop after the step that it is in; a second one ends it as Ctrl-C does. From
    `run.stop_at` on no step begins, nor one that would end after it, were it as long as the longest so far."""

    came = False  # and not whether the run stops already: it may be saving, because `run.stop_at` has come

    def asked(number: int, frame: FrameType | None) -> None:
        nonlocal came
        if came:
            signal.raise_signal(signal.SIGINT)
            return
        came, name = True, signal.Signals(number).name
        events.stop(Stopped(f"{name} came", todo="Start the same command again to go on."))
        # A handler must not print: it may have come while the same stream was written to.
        os.write(2, f"slime: {name}: the run stops after this step; a second signal stops it now\n".encode())

    if stop_at is not None:
        events.subscribe(_deadline(events, unix_seconds(stop_at)))
    with ExitStack() as stack:
        for number in SIGNALS:
            stack.callback(signal.signal, number, signal.signal(number, asked))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
        yield


def _deadline(events: Events, stop_at: float) -> Callable[[Event], None]:
    before, longest = time.time(), 0.0

    def subscriber(event: Event) -> None:
        nonlocal before, longest
        if not isinstance(event, Step):
            return
        longest, before = max(longest, event.time - before), event.time
        if event.complete and event.time + longest > stop_at:
            at = datetime.fromtimestamp(stop_at).isoformat(" ", "seconds")
            what = f"the next step would not end before {at} (run.stop_at)"
            events.stop(Stopped(what, todo="Start the same command again to go on, with a later time."))

    return subscriber
