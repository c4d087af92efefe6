"""What the launcher takes from the distribution that runs SGLang on a CPU."""

from __future__ import annotations

import subprocess
import sys

import pytest

from slime_testing.patience import run_within

START = """
import sys
sys.modules["sglang_torch_cpu"] = None  # as where it is not installed
import torch
torch.cuda.is_available = lambda: {cuda}
from slime_sglang.engine.launcher import on_cpu
assert on_cpu() is None
print("started")
"""


def started(cuda: bool) -> subprocess.CompletedProcess[str]:
    return run_within(120, [sys.executable, "-c", START.format(cuda=cuda)], check=False)


def test_an_engine_on_gpus_needs_none_of_it() -> None:
    assert started(cuda=True).stdout == "started\n"


def test_without_it_the_last_line_on_a_cpu_says_what_to_install() -> None:
    done = started(cuda=False)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert "SGLang on a CPU needs sglang-torch-cpu, which is not installed. Run: pip install 'slime-rl[cpu]'. " in last


def test_on_a_cpu_it_is_what_starts_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    import sglang_torch_cpu
    from slime_sglang.engine.launcher import on_cpu

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert on_cpu() is sglang_torch_cpu
