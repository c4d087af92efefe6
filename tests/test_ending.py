"""When a run ends before its last step."""

import os
import signal
import time
from datetime import UTC, datetime

import psutil
import pytest

from slime.compose.compose import examine
from slime.ending import in_order, stop_problems, unix_seconds
from slime.errors import SlimeError, Stopped
from slime.events import Events, Step
from slime.types import RL


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1900000000", 1_900_000_000),
        ("2030-01-31T08:00+00:00", datetime(2030, 1, 31, 8, tzinfo=UTC).timestamp()),
        ("2030-01-31T08:00", datetime(2030, 1, 31, 8).astimezone().timestamp()),
    ],
)
def test_a_time_is_read_as_people_write_it(text: str, seconds: float) -> None:
    assert unix_seconds(text) == seconds
    assert list(stop_problems(text)) == []


@pytest.mark.parametrize(("text", "seconds"), [("2h3m4s", 7384), ("90m", 5400), ("45s", 45)])
def test_a_duration_begins_with_the_command(text: str, seconds: float) -> None:
    """The module is imported in its first second; here, whenever a test needs it first."""
    assert psutil.Process().create_time() <= unix_seconds(text) - seconds <= time.time()


@pytest.mark.parametrize("text", ["", "soon", "3 hours", "-5m", "2030-13-01"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(SlimeError, match=r"^run.stop_at: '.*' is no time. Give Unix seconds, a duration"):
        unix_seconds(text)


def test_a_time_that_is_over_is_refused_before_anything_starts() -> None:
    words = ["+model=glm4-tiny", "+cluster=local"]
    [problem] = examine([*words, "run.stop_at=2020-01-31T08:00"]).problems
    assert str(problem) == "run.stop_at: '2020-01-31T08:00' is over. Name a later time, or null."
    assert examine([*words, "run.stop_at=12h"]).problems == []


def steps(events: Events, *seconds: float) -> list[bool]:
    """Answers to "is the run to stop?" after each step; steps end at these seconds after the start."""
    began, stops = time.time(), []
    for step, end in enumerate(seconds, 1):
        events.publish(Step(RL, step, {}, time=began + end))
        stops.append(events.problem is not None)
    return stops


def test_no_step_begins_that_would_end_too_late() -> None:
    """Steps of 20, 10, 10 and 10 s, and 75 s: after 50 a step of 20 would end in time, after 60 it would not."""
    events = Events()
    with in_order(events, str(int(time.time()) + 75)):
        assert steps(events, 20, 30, 40, 50) == [False] * 4
        assert steps(events, 60) == [True]
    assert isinstance(events.problem, Stopped)


def test_what_is_measured_before_the_first_step_is_no_step() -> None:
    events = Events()
    with in_order(events, str(int(time.time()) + 5)):
        events.publish(Step(RL, 0, {}, complete=False, time=time.time() + 60))
        assert events.problem is None


@pytest.mark.parametrize("number", [signal.SIGUSR2, signal.SIGTERM])
def test_handlers_are_those_of_before_behind_the_block(
    number: signal.Signals, capfd: pytest.CaptureFixture[str]
) -> None:
    before, events = signal.getsignal(number), Events()
    with in_order(events, None):
        os.kill(os.getpid(), number)
        assert str(events.problem) == f"{number.name} came. Start the same command again to go on."
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before
    assert capfd.readouterr().err.count("a second signal stops it now") == 1


def test_the_first_signal_of_a_run_that_stops_already_interrupts_nothing() -> None:
    """It may be saving, because its time is over; the second signal does."""
    events = Events()
    with in_order(events, str(int(time.time()) + 5)):
        assert steps(events, 20) == [True]
        os.kill(os.getpid(), signal.SIGUSR2)
        assert "run.stop_at" in str(events.problem)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGUSR2)
