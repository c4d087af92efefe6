"""What is said of processes that have ended."""

from slime.engines.scratch import ChildEnd, how_ended


def test_the_first_end_that_a_log_tells_of_is_found_again():
    """A scheduler dies, then the process above it gives up; a traceback of the one above that comes last."""
    scheduler, controller = ChildEnd(100.25, 31, how_ended(-9)), ChildEnd(100.5, 30, how_ended(1))
    log = f"fired up\n{controller}\n{scheduler}\nTraceback (most recent call last):\n  process 7 was killed by mistake"
    assert ChildEnd.first(log) == scheduler
    assert ChildEnd.first(f"{controller}\n") == controller
    assert ChildEnd.first("fired up") is None
