"""Python code that does not return within its limit is ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from slime.time_limit import DidNotReturnError, often, within
from slime_testing.patience import Patience


def spin() -> None:
    while True:
        try:
            time.monotonic()
        except Exception:  # noqa: BLE001  (as careless code does)
            continue


@pytest.mark.parametrize("hang", [spin, lambda: time.sleep(1000), threading.Event().wait])
def test_it_is_ended_and_its_line_is_named(hang: Callable[[], object]) -> None:
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(DidNotReturnError, match=r"did not return within 0.05 s \(\w+.py:\d+ in .*\)"), within(0.05):
        hang()
    assert signal.getsignal(signal.SIGALRM) is before


def test_bounds_that_are_set_often_are_kept() -> None:
    before = signal.getsignal(signal.SIGALRM)
    with often():
        stays = signal.getsignal(signal.SIGALRM)
        for _ in range(2):
            with pytest.raises(DidNotReturnError, match=r"within 0.05 s \(\w+.py:\d+ in spin\)"), within(0.05):
                spin()
            with within(10):
                pass
            assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "it would ring later"
            assert signal.getsignal(signal.SIGALRM) is stays
    assert signal.getsignal(signal.SIGALRM) is before


def test_the_time_may_be_up_as_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The signal comes when the block has returned, and its timer goes still."""
    whole, before = signal.setitimer, signal.getsignal(signal.SIGALRM)

    def slow(which: int, seconds: float, every: float = 0) -> tuple[float, float]:
        if not seconds and signal.getsignal(signal.SIGALRM) is not before:
            signal.raise_signal(signal.SIGALRM)
        return whole(which, seconds, every)

    monkeypatch.setattr(signal, "setitimer", slow)
    with pytest.raises(DidNotReturnError, match="did not return within 100 s"), within(100):
        pass


@pytest.fixture
def no_timer() -> Iterator[None]:
    """The timer is nobody's; afterwards the limit of this test has it back."""
    before = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.setitimer(signal.ITIMER_REAL, *before)


@pytest.mark.usefixtures("no_timer")
def test_what_returns_in_time_is_left_alone() -> None:
    with within(10):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "it would ring later"


@pytest.mark.usefixtures("no_timer")
@pytest.mark.parametrize("bound", [often, lambda: within(10)], ids=["often", "within"])
def test_the_timer_of_somebody_else_goes_on_afterwards(bound: Callable[[], AbstractContextManager[None]]) -> None:
    """Such as the limit of a test."""
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2, 7)
        with bound():
            time.sleep(0.3)
            assert not rung
        assert Patience(60, list).wait_for(lambda: bool(rung))
        assert signal.getitimer(signal.ITIMER_REAL)[1] == 7
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_exception_passes() -> None:
    with pytest.raises(ZeroDivisionError), within(10):
        raise ZeroDivisionError


def test_other_threads_have_no_bound() -> None:
    ended: list[bool] = []

    def work() -> None:
        with within(0.01):
            time.sleep(0.05)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended
