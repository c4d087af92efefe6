"""Environments of verifiers, with the real package in its own interpreter, which SLIME_VERIFIERS_PYTHON names."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from plugins.agents.tests.endpoint.played import END, Stage
from slime.compose.compose import compose, examine
from slime.errors import SlimeError
from slime.plugins import load
from slime.types import Status, Verdict
from slime_agents.verifiers import interpreter
from slime_agents.verifiers.interpreter import parsed, rows_of

PYTHON = os.environ.get(interpreter.VARIABLE, "")
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
RUN = ["+model=glm4-tiny", "+cluster=local", "rollout.program.name=verifiers"]
needs_verifiers = pytest.mark.skipif(not PYTHON, reason=f"{interpreter.VARIABLE} names no interpreter with verifiers")


@pytest.fixture
def toy(tmp_path, monkeypatch):
    (tmp_path / "toy_sums.py").write_text(TASKSET)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@needs_verifiers
def test_its_tasks_are_rows_of_which_an_eighth_is_held_out(toy):
    train, held_out = (
        [json.loads(line) for line in rows_of(f"verifiers://toy_sums{part}").read_text().splitlines()]
        for part in ("", "/heldout")
    )
    assert [row["row"] for row in held_out] == [7, 15]
    assert sorted(row["row"] for row in [*train, *held_out]) == list(range(20))
    assert train[3] == {
        "prompt": [{"role": "user", "content": "3+1="}],
        "label": "3",
        "taskset": {"id": "toy_sums"},
        "row": 3,
    }
    assert rows_of("verifiers://toy_sums") == rows_of("verifiers://toy_sums/")


@needs_verifiers
def test_a_run_of_it_plans(toy):
    cfg = compose([*RUN, "data.path=verifiers://toy_sums", "eval.path=verifiers://toy_sums/heldout"])
    assert cfg.rollout.program.name == "verifiers"


@needs_verifiers
@pytest.mark.parametrize(("answer", "reward"), [("4", 1.0), ("5", 0.0)])
def test_its_reward_is_the_verdict(tmp_path, toy, answer, reward):
    stage = Stage(tmp_path, lambda before: f"{answer}{END}")
    program = load().programs.create("verifiers")
    sample = asyncio.run(stage.make(program, timeout_s=180.0, row=3, taskset={"id": "toy_sums"}))
    assert sample.status is Status.COMPLETED, sample.verdict
    assert sample.verdict == Verdict.of(reward, length=1.0)
    assert stage.trained(sample) == [f"{answer}{END}"]
    assert "3+1=" in stage.texts(sample)[0]


@needs_verifiers
def test_a_fault_of_it_costs_the_attempt(tmp_path, toy):
    stage = Stage(tmp_path, lambda before: f"4{END}")
    program = load().programs.create("verifiers", python=PYTHON)
    sample = asyncio.run(stage.make(program, timeout_s=180.0, row=100, taskset={"id": "toy_sums"}))
    assert sample.status is Status.FAILED
    assert "task set toy_sums has no task 100" in sample.verdict.reason


@needs_verifiers
def test_a_task_set_that_is_not_there_is_named(toy):
    with pytest.raises(SlimeError, match=r"verifiers cannot load it: .*no_such_tasks"):
        rows_of("verifiers://no_such_tasks")


def test_an_interpreter_without_verifiers_is_named(toy, monkeypatch):
    monkeypatch.setenv(interpreter.VARIABLE, sys.executable)
    with pytest.raises(SlimeError, match="verifiers cannot load it: ModuleNotFoundError: No module named 'verifiers'"):
        rows_of("verifiers://toy_sums")


def test_what_an_address_says():
    told = {"id": "owner/sums", "split": "test", "size": 3}
    assert parsed("verifiers://owner/sums/split:test/size:3/heldout") == (told, True)
    assert parsed("verifiers://sums") == ({"id": "sums"}, False)
    for address in ("verifiers://", "verifiers:///heldout", "verifiers://id:sums"):
        with pytest.raises(SlimeError, match="names no task set"):
            parsed(address)


def test_a_run_without_an_interpreter_is_refused(monkeypatch):
    monkeypatch.delenv(interpreter.VARIABLE, raising=False)
    assert "no interpreter with verifiers is named" in " ".join(map(str, examine(RUN).problems))
    [problem] = examine([*RUN, "rollout.program.options.python=not/there"]).problems
    assert "there is no interpreter not/there" in str(problem)
