"""The agent of docs/agents.md that plays an environment of verifiers, with the real package in its own interpreter.

SLIME_VERIFIERS_PYTHON names this interpreter: the pins of verifiers clash with those of slime.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from slime_plugin_endpoint.options import EndpointOptions
from slime_plugin_endpoint.program import EndpointProgram

from plugins.programs.endpoint.tests.played import END, Stage
from slime.types import Status, Verdict

PAGE = Path(__file__).parents[4] / "docs/agents.md"
PYTHON = os.environ.get("SLIME_VERIFIERS_PYTHON", "")
TASKSET = """
import verifiers.v1 as vf


class SumData(vf.TaskData):
    answer: str


class Sum(vf.Task[SumData]):
    @vf.reward
    async def is_right(self, trace: vf.Trace) -> float:
        return float(trace.last_reply.strip() == self.data.answer)

    @vf.metric
    async def length(self, trace: vf.Trace) -> float:
        return len(trace.last_reply.strip())


class Sums(vf.Taskset[Sum, vf.TasksetConfig]):
    def load(self):
        for number in range(20):
            yield Sum(SumData(prompt=f"{number}+1=", answer=str(number + 1)), self.config.task)


__all__ = ["Sums"]
"""
pytestmark = pytest.mark.skipif(not PYTHON, reason="SLIME_VERIFIERS_PYTHON names no interpreter with verifiers")


@pytest.fixture
def agent(tmp_path, monkeypatch) -> str:
    [script] = [code for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S) if "verifiers" in code]
    (tmp_path / "verifiers_agent.py").write_text(script)
    (tmp_path / "toy_sums.py").write_text(TASKSET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return f"{PYTHON} {tmp_path}/verifiers_agent.py toy_sums"


def test_its_tasks_are_rows(agent):
    rows = subprocess.run([*agent.split(), "rows"], capture_output=True, text=True, check=True, timeout=120).stdout
    read = [json.loads(line) for line in rows.splitlines()]
    assert len(read) == 20
    assert read[3] == {"prompt": [{"role": "user", "content": "3+1="}], "label": "", "row": 3}


@pytest.mark.parametrize(("answer", "reward"), [("4", 1.0), ("5", 0.0)])
def test_its_reward_is_the_verdict(tmp_path, agent, answer, reward):
    stage = Stage(tmp_path, lambda before: f"{answer}{END}")
    sample = asyncio.run(stage.make(EndpointProgram(EndpointOptions(command=agent)), timeout_s=180.0, row=3))
    assert sample.status is Status.COMPLETED, sample.verdict
    assert sample.verdict == Verdict.of(reward, length=1.0)
    assert stage.trained(sample) == [f"{answer}{END}"]
    assert "3+1=" in stage.texts(sample)[0]


def test_a_fault_of_it_costs_the_attempt(tmp_path, agent):
    stage = Stage(tmp_path, lambda before: f"4{END}")
    sample = asyncio.run(stage.make(EndpointProgram(EndpointOptions(command=agent)), timeout_s=180.0, row=100))
    assert sample.status is Status.FAILED
    assert "not enough values to unpack" in sample.verdict.reason
