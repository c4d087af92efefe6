"""Whole drills: what is killed comes back, and what does not come back the same is told."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within
from slime_testing.verbs import check_verb
from slime_tools.drill.command import Result, table
from slime_tools.drill.kills import Killed
from slime_tools.drill.plan import Kill, plan
from tests.running import TINY

NOISE = """
import random


def score(sample):
    return random.random()
"""


def test_contract() -> None:
    check_verb("drill")


def test_the_table_says_what_was_killed_and_what_was_broken() -> None:
    planned = plan(["+model=glm4-tiny", "+cluster=local"], 2)
    kills = [
        (
            Kill("trainer", 1, 0.5),
            Killed("trainer", 7, 1, "rl train", "trainer-0 (pid 7 on a): was killed", 21.04, None),
        ),
        (Kill("engine", 3, 0.5), Killed("engine's server", 8, 3, "rl generate", "", 3.0, 2)),
    ]
    lines = [*table(planned, Result(kills, ["no line names it"], ["left out"], same=False))]
    assert lines[1].split("  ", 1)[0] == "trainer 7"
    assert "rl 2 train" in lines[1]
    assert lines[1].endswith("21.0  trainer-0 (pid 7 on a): was killed")
    assert lines[2].endswith("ended  -")
    assert lines[-2:] == ["left out", "broken: no line names it"]
    assert [*table(planned, Result(kills, [], [], same=True))][-1] == "every promise is kept"


def drilled(folder: Path, *words: str) -> tuple[int, str]:
    settings = {**TINY, "eval.path": "null", "cluster.start_timeout_s": 600}
    for key in ("eval.interval", "sft.path"):
        settings.pop(key)
    given = [f"{key}={value}" for key, value in settings.items()]
    command = [sys.executable, "-m", "slime", "drill", "+model=glm4-tiny", "+cluster=local", *given, *words]
    done = run_within(500, command, cwd=folder, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_trainer_an_engine_and_a_worker_come_back_and_nothing_is_lost(tmp_path: Path) -> None:
    words = ["run.name=it", "rollout.prompts_per_step=16", "rollout.samples_per_prompt=8", "--kills", "3"]
    code, said = drilled(tmp_path, *words, "--steps", "14")  # a worker is missed by the next reward
    assert code == 0, said
    lines = said.splitlines()
    table = next(number for number, line in enumerate(lines) if line.startswith("killed  "))
    trainer, engine, worker = lines[table + 1 : table + 4]
    assert re.match(r"trainer \d+ .*trainer-0 .* was killed by SIGKILL.* trainer rank starts again", trainer)
    assert re.match(r"engine's \w+ \d+ .* was killed by SIGKILL.*engine-0 starts again \(1 of 3\)", engine)
    assert re.match(r"(guard|worker) \d+ .* was killed by SIGKILL", worker), said
    assert "the same to the bit as of the run that was not hurt" in said
    assert (tmp_path / "runs/drills/it/killed/export/model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_another_one_afterwards_breaks_its_promise(tmp_path: Path) -> None:
    """A reward by chance: no two runs are the same, killed or not."""
    (tmp_path / "noise.py").write_text(NOISE)
    words = ["reward.path=noise.py:score", *("train.restarts=0", "rollout.restarts=0"), "--kills", "1", "--steps", "2"]
    code, said = drilled(tmp_path, *words)
    assert code == 1, said
    assert "broken: not the same: rl 1: " in said
    assert "not killed, by train.restarts=0: trainers" in said
