"""The bus: who is told of what, in which order, and what happens to a run whose subscriber fails."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slime.errors import SlimeError
from slime.events import Complete, Ended, Event, Events, Phase, Restored, StageBegan, StageEnded, Step
from slime.observe import subscribers as module
from slime.observe.metrics import MetricsLog, read_rows
from slime.observe.subscribers import subscribers
from slime.plugins import Contribution, Plugin, Plugins
from slime.run_dir import RunDir
from slime.types import TrackedRun


def test_every_subscriber_is_told_in_order_and_the_end_in_reverse() -> None:
    told: list[tuple[str, Event]] = []
    events = Events(lambda event: told.append(("first", event)))
    events.subscribe(lambda event: told.append(("second", event)))
    with events.until_ended(), events.stage("rl", 3, 1):
        events.phase("generate", 1, 2)
    middle = [(name, event) for event in (StageBegan("rl", 3, 1), Phase("generate", 1, 2), StageEnded())
              for name in ("first", "second")]  # fmt: skip
    assert told == [*middle, ("second", Ended("finished")), ("first", Ended("finished"))]


@pytest.mark.parametrize(("error", "status"), [(ValueError("x"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_a_stage_and_a_run_end_by_an_error_too(error: BaseException, status: Any) -> None:
    told: list[Event] = []
    events = Events(told.append)
    with pytest.raises(type(error)), events.until_ended(), events.stage("rl", 3):
        raise error
    assert told == [StageBegan("rl", 3), StageEnded(), Ended(status, error)]


def test_a_row_is_on_disk_before_those_who_come_later_see_the_step(tmp_path: Path) -> None:
    seen: list[int] = []
    with RunDir.open(tmp_path) as run, MetricsLog(run) as metrics:
        events = Events(metrics, lambda event: seen.append(len(read_rows(run.metrics))))
        events.publish(Restored(None))
        events.publish(Step("rl", 1, {"rollout/reward_mean": 0.5}))
    assert seen == [0, 1]


def test_what_slime_s_own_subscriber_raises_ends_the_run(tmp_path: Path) -> None:
    """A row that is lost is not passed over: the checkpoint of its step is never taken."""
    seen: list[Event] = []
    with RunDir.open(tmp_path / "run") as run, MetricsLog(run) as metrics:
        events = Events(metrics, seen.append)
        events.publish(Restored(None))
        run.metrics.unlink()
        with pytest.raises(SlimeError, match=r"metrics\.jsonl: it was deleted or replaced"):
            events.publish(Step("rl", 1, {}))
    assert seen == [Restored(None)]


@contextmanager
def told(factory: Callable[..., Any], folder: Path) -> Iterator[Events]:
    """The bus of a run beside which a plugin with this subscriber is installed."""
    brought = Contribution("subscriber", "acme", factory, "slime-acme", "1.2")
    installed = Plugins([Plugin("acme", "slime-acme", "1.2", [brought])])
    events = Events()
    events.subscribe(*subscribers(installed, TrackedRun("it", folder, {}), events))
    with events.until_ended():
        yield events


def test_one_of_every_session_is_told_from_the_first_event_and_may_publish_more(tmp_path: Path) -> None:
    class Counts:
        every_session = True

        def __init__(self, run: TrackedRun, events: Events) -> None:
            self._events = events

        def __call__(self, event: Event) -> None:
            if isinstance(event, StageBegan):
                self._events.phase("generate", event.done, event.total)

    brought = Contribution("subscriber", "acme", Counts, "slime-acme", "1.2")
    installed, run = Plugins([Plugin("acme", "slime-acme", "1.2", [brought])]), TrackedRun("it", tmp_path, {})
    seen: list[Event] = []
    events = Events(seen.append)
    assert subscribers(installed, run, events) == []
    events.subscribe(*subscribers(installed, run, events, every_session=True))
    events.subscribe(lambda event: seen.append(Complete()), first=True)
    events.publish(StageBegan("rl", 3, 1))
    assert seen == [Complete(), StageBegan("rl", 3, 1), Complete(), Phase("generate", 1, 3)]


class Failing:
    """A subscriber that fails at the third event, as `fault` says."""

    def __init__(self, fault: BaseException | None) -> None:
        self.fault, self.told = fault, 0

    def __call__(self, event: Event) -> None:
        self.told += 1
        if self.told == 3:
            if self.fault is None:
                threading.Event().wait()
            else:
                raise self.fault


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (ValueError("no\nsuch table."), "ValueError: no such table"),
        (SystemExit(1), "SystemExit: 1"),
        (None, "it did not return within 1 s"),
    ],
)
def test_one_of_a_plugin_that_fails_is_left_alone_and_the_run_goes_on(
    fault: BaseException | None, words: str, tmp_path: Path, caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(module, "PATIENCE_S", 1.0)
    failing = Failing(fault)
    with told(lambda run: failing, tmp_path) as events:
        for step in range(5):
            events.publish(Step("rl", step, {}))
        events.publish(Complete())
    assert failing.told == 3
    (message,) = [record.getMessage() for record in caplog.records if record.name == module.__name__]
    assert message.startswith(f"subscriber acme failed at Step ({words}")
    assert message.endswith("): the run goes on without it")


def test_a_ctrl_c_inside_of_one_ends_the_run(tmp_path: Path) -> None:
    failing = Failing(KeyboardInterrupt())
    failing.told = 2
    with pytest.raises(KeyboardInterrupt), told(lambda run: failing, tmp_path) as events:
        events.publish(Step("rl", 1, {}))


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda run: run.folder / 1, "it does not start (TypeError: unsupported operand type(s)"),
        (lambda run: run.name, "its factory returned 'it', not a function of an event"),
    ],
)
def test_one_that_does_not_start_stops_the_run_before_it_begins(
    answer: Callable[..., Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(SlimeError) as caught, told(answer, tmp_path):
        pass
    assert str(caught.value).startswith(f"subscriber 'acme' of slime-acme 1.2: {words}")
    assert str(caught.value).endswith("or remove it ('pip uninstall slime-acme').")
