"""Python code that does not return within its limit is ended."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest

from slime.time_limit import DidNotReturnError, often, within


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
    whole = signal.setitimer

    def slow(which: int, seconds: float) -> tuple[float, float]:
        if not seconds:
            signal.raise_signal(signal.SIGALRM)
        return whole(which, seconds)

    monkeypatch.setattr(signal, "setitimer", slow)
    with pytest.raises(DidNotReturnError, match="did not return within 100 s"), within(100):
        pass
    whole(signal.ITIMER_REAL, 0)


def test_what_returns_in_time_is_left_alone() -> None:
    with within(10):
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "it would ring later"


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
