"""The program that counts the endpoint's processor time."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within

PROGRAM = Path(__file__).parents[2] / "benchmarks/endpoint.py"


@pytest.mark.slow
def test_every_part_takes_some_of_the_whole() -> None:
    command = [sys.executable, PROGRAM, "--conversations", "3", "--turns", "3"]
    said = run_within(120, command).stdout
    found = {name.strip(): float(ms) for name, ms in re.findall(r"^(.*?) +([\d.]+) ms$", said, re.M)}
    taken = found.pop("time of day of a request, p50")
    whole = found.pop("processor time of a request")
    assert taken > 0
    assert len(found) == 11, said
    assert min(found.values()) >= 0
    assert found["http, the event loop"] > 0  # on some virtual machines others take nothing that their clock shows
    assert abs(sum(found.values()) - whole) < 0.01
