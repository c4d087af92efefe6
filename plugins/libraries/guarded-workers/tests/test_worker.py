"""The parts of a worker that can be looked at from outside one."""

from __future__ import annotations

import subprocess
import sys

from guarded_workers.worker import describe

LIMITED = """
import resource
from guarded_workers import worker
resource.setrlimit(resource.RLIMIT_AS, ({allowed}, {allowed}))
worker._limit_memory(4096)
print(resource.getrlimit(resource.RLIMIT_AS)[0])
"""


def test_a_stricter_limit_of_the_host_stays() -> None:
    allowed = 2**30
    shown = subprocess.run([sys.executable, "-c", LIMITED.format(allowed=allowed)], capture_output=True, text=True)
    assert shown.stdout == f"{allowed}\n", shown.stderr


def test_an_error_in_one_line_names_its_line_once() -> None:
    try:
        raise KeyError("missing\nkey")
    except KeyError as error:
        text = describe(error)
    assert text.startswith("KeyError: 'missing\\nkey' (test_worker.py:")
    assert text.count("test_worker.py") == 1
