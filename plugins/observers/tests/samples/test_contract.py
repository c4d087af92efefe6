"""The subscriber as slime uses it."""

from pathlib import Path

from slime_testing.plugins import check_subscriber


def test_it_takes_the_events_of_a_run(tmp_path: Path) -> None:
    check_subscriber("samples", tmp_path)
