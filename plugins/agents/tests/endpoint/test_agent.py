"""Agents as processes of their own: what they are given, what they cost when they fail, and how they end."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import secrets
import sys
import time
from contextlib import suppress

import psutil
import pytest

from plugins.agents.tests.endpoint.played import MESSAGES, Stage, counting
from slime.compose.compose import compose
from slime.errors import SlimeError
from slime.types import Status, Verdict, VerdictKind
from slime_agents.endpoint.options import EndpointOptions
from slime_agents.endpoint.program import EndpointProgram
from slime_testing.patience import Patience, family

SCRIPT = """
import os, sys, json, subprocess, time
task = json.loads(sys.stdin.readline())
assert os.environ["SLIME_PROMPT"] == task["messages"][-1]["content"]
from openai import OpenAI
answer = OpenAI().chat.completions.create(model=os.environ["OPENAI_MODEL"], messages=task["messages"])
print(answer.choices[0].message.content)
"""


def command(tmp_path, more: str = "") -> str:
    (tmp_path / "agent.py").write_text(SCRIPT + more)
    return f"{sys.executable} {tmp_path}/agent.py"


def test_an_agent_is_a_process_of_its_own(tmp_path):
    stage = Stage(tmp_path, counting())
    sample = asyncio.run(stage.make(EndpointProgram(EndpointOptions(command=command(tmp_path)))))
    assert (sample.status, sample.response) == (Status.COMPLETED, "answer 0"), sample.verdict
    assert MESSAGES[0]["content"] in stage.texts(sample)[0]
    assert sample.segments[0].context == sample.prompt.tokens


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("raise ValueError('no idea')", "the agent ended with exit code 1: ValueError: no idea"),
        ("sys.exit(7)", "the agent ended with exit code 7: answer 0"),
        ("sys.stdout.flush(); os.kill(os.getpid(), 11)", "the agent was killed by SIGSEGV"),
        (
            "held = b'x' * (700 * 2**20); time.sleep(600)",
            "the agent takes more than rollout.program.options.memory_mb=600 MiB",
        ),
        ("while True: subprocess.Popen(['sleep', '600'])", "the agent has more than 200 processes"),
    ],
)
def test_a_fault_of_an_agent_costs_its_attempt_alone(tmp_path, more, reason):
    stage = Stage(tmp_path, counting())
    sample = asyncio.run(stage.make(EndpointProgram(EndpointOptions(command=command(tmp_path, more), memory_mb=600))))
    assert sample.status is Status.FAILED
    assert sample.verdict.kind is VerdictKind.ERROR
    assert reason in sample.verdict.reason
    until_none_is_left(tmp_path)


def left(tmp_path) -> list[str]:
    """What is left of an attempt's processes."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since, also as a zombie
            with_it = process.cmdline()
            found += [" ".join(with_it)] if str(tmp_path) in " ".join(with_it) or "sleep" in with_it else []
    return found


def until_none_is_left(tmp_path):
    """Killed processes end as soon as they have a core. None of them would end by itself meanwhile."""
    assert Patience(60, lambda: family(os.getpid())).wait_for(lambda: not left(tmp_path)), left(tmp_path)


def test_an_agent_that_hangs_is_ended_with_all_that_it_started(tmp_path):
    """Also with what it put into a session of its own."""
    stage, asleep = Stage(tmp_path, counting()), ["sleep", f"601.{secrets.randbits(30)}"]  # nobody else's here
    (tmp_path / "agent.py").write_text(
        f"import subprocess, time\nsubprocess.Popen(['setsid', *{asleep}])\ntime.sleep(600)"
    )
    program = EndpointProgram(EndpointOptions(command=f"{sys.executable} {tmp_path}/agent.py"))
    sample = asyncio.run(stage.make(program, timeout_s=6.0))
    assert sample.verdict.kind is VerdictKind.TIMEOUT
    until_none_is_left(tmp_path)
    assert not [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == asleep]


CHATTY = "print('x' * 200_000); time.sleep(600)"


@pytest.mark.parametrize("more", ["", CHATTY], ids=["asks", "prints"])
def test_a_run_that_ends_in_the_midst_of_attempts_leaves_nothing_and_says_nothing(tmp_path, more, caplog, monkeypatch):
    """As Ctrl-C ends it: every attempt is cancelled, and the event loop closed at once."""
    ignored = []
    monkeypatch.setattr(sys, "unraisablehook", lambda found: ignored.append(str(found.exc_value)))
    (tmp_path / "agent.py").write_text("import time\n" + (more or SCRIPT))
    stage = Stage(tmp_path, counting(), delay_s=0.0 if more else 60.0)
    program = EndpointProgram(EndpointOptions(command=f"{sys.executable} {tmp_path}/agent.py"))

    async def ended():
        attempts = [asyncio.create_task(stage.make(program)) for _ in range(4)]
        while len(left(tmp_path)) < 4 or len(stage.engine.requests) < (0 if more else 4):
            await asyncio.sleep(0.1)
        await asyncio.sleep(1.0 if more else 0.0)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.wait(attempts)

    asyncio.run(ended())
    gc.collect()
    time.sleep(0.5)  # threads that wait for a process find its loop closed
    until_none_is_left(tmp_path)
    assert not ignored
    assert not [record for record in caplog.records if "Withheld" not in record.getMessage()], caplog.text


SURROUNDED = """
for name in ("PATH", "HOME", "PYTHONPATH", "HTTPS_PROXY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY", "ZOO_KEY"):
    assert os.environ.get(name), name
assert os.environ["OPENAI_API_KEY"] == os.environ["ANTHROPIC_API_KEY"] != "the user's own"
held = [name for name in ("ZOO_TOKEN", "WANDB_API_KEY", "HTTP_PROXY") if name in os.environ]
assert not held, held
print(json.dumps(dict(os.environ)), file=open(__file__ + ".seen", "w"))
os.environ["WANDB_API_KEY"]
"""


def test_an_agent_gets_no_secrets_but_those_that_are_named(tmp_path, monkeypatch, caplog):
    """And says how to get one that it misses. A function runs in the driver, and has what this has."""
    secrets_ = {"ZOO_TOKEN": "s1", "WANDB_API_KEY": "s2", "HTTP_PROXY": "http://me:s3@proxy:80"}
    others = {"ZOO_KEY": "k", "OPENAI_API_KEY": "the user's own", "PYTHONPATH": str(tmp_path),
              "HTTPS_PROXY": "http://proxy:80"}  # fmt: skip
    for name, value in {**secrets_, **others}.items():
        monkeypatch.setenv(name, value)
    options = EndpointOptions(command=command(tmp_path, SURROUNDED), environment=["ZOO_KEY"])
    sample = asyncio.run(Stage(tmp_path, counting()).make(EndpointProgram(options)))
    assert "KeyError: 'WANDB_API_KEY' (WANDB_API_KEY is withheld from agents unless" in sample.verdict.reason
    assert "rollout.program.options.environment lists it)" in sample.verdict.reason
    seen = json.loads((tmp_path / "agent.py.seen").read_text())
    assert {"s1", "s2", "the user's own"}.isdisjoint(seen.values())
    [said] = [record.getMessage() for record in caplog.records if "Withheld" in record.getMessage()]
    assert all(name in said for name in secrets_)
    assert not any(value in said for value in ("s1", "s2", "s3"))


def test_a_variable_that_is_not_set_or_of_workers_is_refused(monkeypatch):
    monkeypatch.setenv("ZOO_TOKEN", "s1")
    with pytest.raises(SlimeError, match=r"options.environment: the variable ZOO_TOKE is not set.*'ZOO_TOKEN'"):
        EndpointProgram(EndpointOptions(command="true", environment=["ZOO_TOKE"]))
    EndpointProgram(EndpointOptions(command="true", environment=["ZOO_TOKEN"]))
    words = ["+model=glm4-tiny", "+cluster=local", "rollout.program.command=cat"]
    with pytest.raises(SlimeError, match=r"Name the variables in rollout\.program\.options\.environment"):
        compose([*words, "rollout.program.environment=[ZOO_TOKEN]"])
    compose([*words, "rollout.program.options.environment=[ZOO_TOKEN]"])


JUDGES = """
import urllib.error, urllib.request
def judge(said):
    return urllib.request.urlopen(os.environ["SLIME_VERDICT_URL"], data=said.encode())
for wrong in ("x", "1", "{}", "[]", '{"reward": true}', '{"reward": 1e13}', '{"reward": 1, "part": {}}',
              '{"reward": 1, "parts": 2}'):
    try:
        judge(wrong)
    except urllib.error.HTTPError as error:
        assert error.code == 400, error
        assert json.loads(error.read())["error"]["message"]
    else:
        raise AssertionError(wrong)
judge('{"reward": 0.0}')
judge('{"reward": 0.5, "parts": {"correct": 1}}')
"""


def test_an_agent_judges_itself(tmp_path):
    stage = Stage(tmp_path, counting())
    sample = asyncio.run(stage.make(EndpointProgram(EndpointOptions(command=command(tmp_path, JUDGES)))))
    assert sample.status is Status.COMPLETED, sample.verdict
    assert sample.verdict == Verdict.of(0.5, correct=1.0)
