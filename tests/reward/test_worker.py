"""The parts of a worker that can be looked at from outside one."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slime.reward.worker import checked, describe
from slime.types import Verdict

LIMITED = """
import resource
from slime.reward import worker
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
    assert checked(verdict) == verdict


def test_numbers_of_other_types_become_floats() -> None:
    numpy = pytest.importorskip("numpy")
    verdict = checked(Verdict.of(numpy.float32(0.5), format=numpy.int64(1)))
    assert (type(verdict.value), type(verdict.parts["format"])) == (float, float)


def test_an_error_in_one_line_names_its_line_once() -> None:
    try:
        raise KeyError("missing\nkey")
    except KeyError as error:
        text = describe(error)
    assert text.startswith("KeyError: 'missing\\nkey' (test_worker.py:")
    assert text.count("test_worker.py") == 1
