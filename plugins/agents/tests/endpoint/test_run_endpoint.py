"""Whole laptop runs of an agent program: a real engine, real trainers, the real client of OpenAI."""

from __future__ import annotations

import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from slime_observers.samples.rows import read_samples
from tests.running import NO_CHECKPOINTS, TINY, Run

AGENT = """
import os, sys, json, time
from openai import OpenAI

task = json.loads(sys.stdin.readline())
with open(__file__ + ".begun", "ab", buffering=0) as begun:
    begun.write(b".")
    number = begun.tell()
client = OpenAI()
messages = [{"role": "user", "content": os.environ["SLIME_PROMPT"]}]
said = client.chat.completions.create(model="policy", messages=messages, max_tokens=12).choices[0].message
messages += [said.model_dump(), {"role": "user", "content": "1+1="}]
for _ in client.chat.completions.create(model="policy", messages=messages, max_tokens=12, stream=True):
    pass
while number > 6 and task["attempt"] == 1:
    time.sleep(60)
"""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def agents(tmp_path: Path, **more: object) -> Run:
    """A run of 2 prompts, each of which 3 agents answer at the same time."""
    (tmp_path / "my_agent.py").write_text(AGENT)
    words = {
        **TINY,
        **NO_CHECKPOINTS,
        "run.num_steps": 3,
        "eval.path": "null",
        "rollout.sampling.max_response_tokens": 64,
        "rollout.prompts_per_step": 2,
        "rollout.samples_per_prompt": 3,
        "rollout.program.name": "endpoint",
        "rollout.program.options.command": f"'{sys.executable} {tmp_path}/my_agent.py'",
    }
    return Run(tmp_path, shortened=words, **more)  # type: ignore[arg-type]


def num_agents(run: Run) -> int:
    """How many agents run now."""
    lines = []
    for process in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            lines.append(process.cmdline())
    return sum(line[1:] == [str(run.folder / "my_agent.py")] for line in lines)


def test_a_run_trains_an_agent_program_by_its_url_and_leaves_none_when_it_is_interrupted(tmp_path: Path) -> None:
    """The agents of the first step all end. Of the next ones the second attempt at each prompt does not, which costs
    that attempt; the run is interrupted while those of the third step hang. On a busy machine six clients that start at
    once take half a minute."""
    settings = {"rollout.program.timeout_s": 80, "reward.max_failed_share": 0.5}
    run = agents(tmp_path, settings=settings, silence_s=150.0).start()
    run.until(lambda: run.has_step("rl", 1))
    assert "closed" not in run.text()
    run.until(lambda: run.has_step("rl", 2))
    run.until(lambda: num_agents(run) == 6)
    run.until(lambda: num_agents(run) == 2)
    run.kill(signal.SIGINT)
    assert run.process.returncode == 130
    assert run.strays() == []
    said = run.text()
    assert re.search(r"slime: interrupted; (nothing was saved yet|the same command continues after sft \d+)\n$", said)
    assert not re.search("closed|Traceback|Exception", said), said
    first, second = run.rows("rl")
    assert (first["rollout/requests_mean"], first["rollout/forks_mean"]) == (2, 0)
    assert first["train/grad_norm"] > 0
    samples = list(read_samples(run.path / "samples/step-000001.jsonl"))
    assert len(samples) == 6
    for sample in samples:
        assert [turn["role"] for turn in sample["turns"]] == ["assistant", "user", "assistant"]
    assert second["rollout/requests_mean"] == 2
    samples = list(read_samples(run.path / "samples/step-000002.jsonl"))
    assert sorted(str(sample["verdict"]) for sample in samples if sample["finish"] == "failed") == ["timeout"] * 2
