"""Trackers that fail: the run goes on, says so in a line, and they get what they lack."""

import threading
import time
from contextlib import contextmanager

import pytest

from slime.errors import SlimeError
from slime.events import Events, Restored, SampleRows, Step
from slime.types import TrackedRun
from slime_observers.trackers import handing as module
from slime_observers.trackers.handing import RETRY_S, Trackers


class Recorder:
    """A tracker whose server is away while `away` says so."""

    def __init__(self):
        self.away, self.rows, self.asked, self.calls = None, [], 0, []
        self.full, self.samples = None, []

    def start(self, run):
        self._answer()
        self.calls.append("start")

    def resume(self, stage, step):
        self._answer()
        self.calls.append(f"resume {stage} {step}")

    def log(self, stage, step, time, values):
        self.asked += 1
        self._answer()
        self.rows.append((stage, step, time, values))

    def log_samples(self, stage, step, time, samples):
        if self.full:
            raise self.full
        self.samples.append((stage, step, time, samples))

    def finish(self, status):
        self._answer()
        self.calls.append(status)

    def _answer(self):
        if self.away == "hangs":
            threading.Event().wait()
        if self.away:
            raise self.away


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def clock():
    """Seconds, of which 10 pass each time it is asked."""
    return iter(range(0, 10**6, 10)).__next__


class Run:
    """The events of a run, with what is kept of its samples."""

    def __init__(self, trackers, **kwargs):
        self.trackers = Trackers(trackers, **kwargs)
        self.events = Events(self.trackers)

    def log(self, steps):
        for step in steps:
            self.events.publish(SampleRows({"rollout/samples": [{"response": str(step)}]}))
            self.events.publish(Step("rl", step, {"loss": step / 2}, time=float(step)))


@contextmanager
def started(tmp_path, *, clock=time.monotonic, **trackers):
    run = Run(trackers, clock=clock)
    run.trackers.start(TrackedRun("it", tmp_path, {}))
    with run.events.until_ended():
        yield run


def test_every_row_in_order(recorder, tmp_path):
    with started(tmp_path, acme=recorder) as run:
        run.events.publish(Restored(("sft", 3)))
        run.log([1, 2])
    assert recorder.rows == [("rl", 1, 1.0, {"loss": 0.5}), ("rl", 2, 2.0, {"loss": 1.0})]
    assert recorder.calls == ["start", "resume sft 3", "finished"]


def test_a_run_that_returns_to_a_step_or_to_its_beginning(recorder, tmp_path):
    with started(tmp_path, acme=recorder) as run:
        run.events.publish(Restored(None))
        run.log([1, 2])
        run.events.publish(Restored(("rl", 1)))
        run.events.publish(Restored(None))
    assert recorder.calls == ["start", "resume rl 1", "resume sft 0", "finished"]


@pytest.mark.parametrize(("error", "status"), [(ValueError("x"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_how_the_run_ended(recorder, tmp_path, error, status):
    with pytest.raises(type(error)), started(tmp_path, acme=recorder):
        raise error
    assert recorder.calls[-1] == status


def test_one_that_does_not_start_stops_the_run_and_closes_the_others(recorder, tmp_path):
    away = Recorder()
    away.away = ConnectionError("nobody\nat home.")
    with pytest.raises(SlimeError) as caught:
        Trackers({"acme": recorder, "away": away}).start(TrackedRun("it", tmp_path, {}))
    assert str(caught.value) == (
        "observe.trackers.away: it does not start (ConnectionError: nobody at home). "
        "Correct its settings, or run without: observe.trackers.away=false."
    )
    assert recorder.calls == ["start", "failed"]


def test_a_failure_is_told_once_and_the_rows_come_later(recorder, tmp_path, clock, caplog):
    with started(tmp_path, acme=recorder, clock=clock) as run:
        recorder.away = OSError("away")
        run.log(range(1, 5))
        assert recorder.asked == 1, "a server that is away is not asked at every step"
        run.log(range(5, 5 + int(RETRY_S / 10)))
        assert recorder.asked == 2
        recorder.away = None
        run.log(range(20, 20 + int(RETRY_S / 10)))
    assert [row[1] for row in recorder.rows] == [*range(1, 11), *range(20, 26)]
    first, second = caplog.messages
    assert first == (
        "tracker acme failed at rl step 1 (OSError: away): the run goes on without it, its rows wait, "
        "and metrics.jsonl has them"
    )
    assert second == "tracker acme works again, and has every row"


def test_one_that_stays_away_is_told_at_the_end(recorder, tmp_path, caplog):
    with started(tmp_path, acme=recorder) as run:
        recorder.away = OSError("away")
        run.log([1, 2, 3])
    assert caplog.messages[1:] == [
        "tracker acme lacks 3 rows; metrics.jsonl has them",
        "tracker acme did not close (OSError: away)",
    ]


def test_one_that_fails_takes_nothing_from_the_others(recorder, tmp_path):
    bad = Recorder()
    with started(tmp_path, bad=bad, acme=recorder) as run:
        bad.away = OSError("away")
        run.log([1, 2])
    assert [row[1] for row in recorder.rows] == [1, 2]


def test_samples_do_not_wait_for_one_that_is_away(recorder, tmp_path, clock):
    with started(tmp_path, acme=recorder, clock=clock) as run:
        run.log([1])
        recorder.away = OSError("away")
        run.log([2])
        recorder.away = None
        run.log(range(3, 3 + int(RETRY_S / 10)))
        run.events.publish(Step("rl", 9, {"loss": 0.0}))
    assert [row[1] for row in recorder.rows] == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert recorder.samples[0] == ("rl", 1, 1.0, {"rollout/samples": [{"response": "1"}]})
    assert [shown[1] for shown in recorder.samples] == [1, 8], "step 9 has none"


def test_samples_that_are_not_taken_hold_up_no_metrics_and_are_told_of_once(recorder, tmp_path, caplog):
    with started(tmp_path, acme=recorder) as run:
        recorder.full = ValueError("too large")
        run.log([1, 2])
        recorder.full = None
        run.log([3])
    assert [row[1] for row in recorder.rows] == [1, 2, 3]
    assert [shown[1] for shown in recorder.samples] == [3]
    assert caplog.messages == [
        "tracker acme lacks samples of rl step 1 (ValueError: too large): samples/ has them; "
        "later ones are tried in silence"
    ]


@pytest.mark.parametrize("end", [SystemExit(1), ValueError("no")])
def test_one_that_exits_or_cannot_continue_does_not_end_the_run(recorder, tmp_path, caplog, end):
    with started(tmp_path, acme=recorder) as run:
        recorder.away = end
        run.events.publish(Restored(("rl", 2)))
        run.log([3])
    assert "tracker acme failed to continue at rl step 2" in caplog.text
    assert f"tracker acme failed at rl step 3 ({type(end).__name__}" in caplog.text
    assert "tracker acme did not close" in caplog.text


def test_one_that_hangs_costs_the_run_its_patience_once(recorder, tmp_path, caplog, monkeypatch):
    with started(tmp_path, acme=recorder, clock=iter(range(0, 10**6, 1000)).__next__) as run:
        recorder.away = "hangs"
        monkeypatch.setattr(module, "PATIENCE_S", 1.0)
        run.log(range(5))
        assert recorder.asked == 1
        assert "tracker acme failed at rl step 0 (it did not return within 1 s (threading.py:" in caplog.text
        recorder.away = None
        monkeypatch.undo()  # what returns has time
    assert [row[1] for row in recorder.rows] == [0, 1, 2, 3, 4]


def test_one_that_hangs_at_the_start_stops_the_run(recorder, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LONG_PATIENCE_S", 0.1)
    recorder.away = "hangs"
    with pytest.raises(SlimeError, match=r"trackers\.acme: it does not start .it did not return within 0\.1 s"):
        Trackers({"acme": recorder}).start(TrackedRun("it", tmp_path, {}))
