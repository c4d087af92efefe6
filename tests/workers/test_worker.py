"""The parts of a worker that can be looked at from outside one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slime.algo.advantages import group_advantages
from slime.types import Verdict
from slime.workers.verdicts import MAX_VALUE, checked
from slime.workers.worker import describe

LIMITED = """
import resource
from slime.workers import worker
resource.setrlimit(resource.RLIMIT_AS, ({allowed}, {allowed}))
worker._limit_memory(4096)
print(resource.getrlimit(resource.RLIMIT_AS)[0])
"""


def test_a_stricter_limit_of_the_host_stays() -> None:
    allowed = 2**30
    shown = subprocess.run([sys.executable, "-c", LIMITED.format(allowed=allowed)], capture_output=True, text=True)
    assert shown.stdout == f"{allowed}\n", shown.stderr


@pytest.mark.parametrize("verdict", [Verdict.of(0.5, format=1.0), Verdict.invalid("why"), Verdict.error("how")])
def test_a_good_verdict_passes_unchanged(verdict: Verdict) -> None:
    assert checked(verdict, "score") == verdict


def test_numbers_of_other_types_become_floats() -> None:
    numpy = pytest.importorskip("numpy")
    verdict = checked(Verdict.of(numpy.float32(0.5), format=numpy.int64(1)), "score")
    assert (type(verdict.value), type(verdict.parts["format"])) == (float, float)


def test_the_largest_numbers_pass_and_larger_ones_are_named() -> None:
    assert checked(Verdict.of(-1e12, nanoseconds=1.7e18, most=1e30), "score").value == -1e12
    refused = checked(Verdict.of(1.0, good=1.0, wild=-1e31), "score").reason
    assert "with wild=-1e+31; numbers are finite, at most 1e+12 in size, parts 1e+30" in refused


def test_advantages_and_their_squares_fit_into_float32() -> None:
    """The largest values there are, with and without the division by their deviation."""
    for divide in (False, True):
        advantages = group_advantages([MAX_VALUE, -MAX_VALUE, MAX_VALUE], divide)
        assert all(advantage**2 < 1e26 for advantage in advantages)


def test_an_error_in_one_line_names_its_line_once() -> None:
    try:
        raise KeyError("missing\nkey")
    except KeyError as error:
        text = describe(error)
    assert text.startswith("KeyError: 'missing\\nkey' (test_worker.py:")
    assert text.count("test_worker.py") == 1
