"""Environments of the user's own, in worker processes, over several turns."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path

import pytest

from plugins.agents.tests.conversations.played import Played
from slime.compose.compose import compose
from slime.config.rollout import ProgramConfig
from slime.errors import SlimeError
from slime.sampling.programs import opened
from slime.types import Status, Verdict, VerdictKind

EXAMPLES = Path(__file__).parents[4] / "examples"
MINE = '''
import asyncio
import os


class Counts:
    """As many turns as it is told, half a point each."""

    def __init__(self, turns=2, fault=""):
        self.left, self.fault = turns, fault

    async def reset(self, task):
        await asyncio.sleep(0)
        if self.fault == "reset":
            raise OSError("the server is gone")
        return None

    async def step(self, response):
        self.left -= 1
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "number":
            return 1.0
        if self.fault == "nan":
            return "on", float("nan"), False
        return [{"role": "user", "content": "again"}], 0.5, self.left == 0

    async def close(self):
        open(os.environ["CLOSED"], "a").write("closed ")


class Unfinished:
    def reset(self, task):
        return None


def play():
    return Counts()
'''


@pytest.fixture
def mine(tmp_path, monkeypatch):
    (tmp_path / "my_env.py").write_text(MINE)
    monkeypatch.setenv("CLOSED", str(tmp_path / "closed"))
    return tmp_path / "my_env.py"


@contextmanager
def gym(path, **options):
    with opened(ProgramConfig("gym", {"path": str(path), **options})) as program:
        yield program


def test_the_example_s_environment_is_played(tmp_path):
    """The class of examples/environment."""
    file = EXAMPLES / "environment/my_env.py"
    assert len([line for line in file.read_text().splitlines() if line]) <= 20
    play = Played(tmp_path)
    with gym(f"{file}:GuessTheDigit") as program:
        found = play(program, "\n5<|user|>", "\nwhat?<|user|>", "\n8<|user|>", label=58)
        lost = play(program, *["\n5<|user|>"] * 4, label=58)
    assert found.verdict == Verdict.of(0.9)
    said = [turn["content"] for turn in found.turns if turn["role"] == "user"]
    assert said == ["Higher.", "That is no number."]
    assert found.metadata == {"steps": 3.0, "done": 1.0}
    [segment] = found.segments
    assert "I think of a digit." in play.tokenizer.decode(segment.context), "said in the prompt's place"
    kept = [token for token, mask in zip(segment.tokens, segment.loss_mask, strict=True) if mask]
    assert play.tokenizer.decode(kept) == "\n5<|user|>\nwhat?<|user|>\n8<|user|>", "what was sampled, no more"
    assert (lost.verdict, lost.metadata["steps"]) == (Verdict.of(0.0), 4)


def test_turns_are_bounded_and_what_was_earned_counts(tmp_path, mine):
    with gym(f"{mine}:Counts", arguments={"turns": 9}, max_turns=3) as program:
        sample = Played(tmp_path)(program, *["\n1<|user|>"] * 3)
    assert sample.verdict == Verdict.of(1.5)
    assert sample.metadata == {"steps": 3.0, "done": 0.0}
    assert (tmp_path / "closed").read_text() == "closed "


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("reset", "OSError: the server is gone"),
        ("exit", "exited with code 3"),
        ("number", r"step returned 1.0, not \(what the model is told, reward, done\)"),
        ("nan", "rewards are finite"),
    ],
)
def test_what_goes_wrong_costs_the_attempt_and_no_other(tmp_path, mine, fault, why):
    play = Played(tmp_path)
    with gym(f"{mine}:Counts", arguments={"fault": fault}) as program:
        sample = play(program, "\n1<|user|>")
    assert (sample.status, sample.verdict.kind) == (Status.FAILED, VerdictKind.ERROR)
    assert re.search(why, sample.verdict.reason)
    with gym(f"{mine}:Counts") as program:
        assert play(program, "\n1<|user|>", "\n2<|user|>").verdict == Verdict.of(1.0)


def test_what_is_not_there_is_said_before_anything_starts(mine):
    words = ["+model=glm4-tiny", "+cluster=local", "rollout.program.name=gym"]
    for path, what in {
        "Count": r"there is no function 'Count'\. Did you mean 'Counts'",
        "Unfinished": "has no method 'step'",
        "play": "my_env.py:play is a function, not a class",
    }.items():
        with pytest.raises(SlimeError, match=what):
            compose([*words, f"rollout.program.path={mine}:{path}"])
    with pytest.raises(SlimeError, match="the program 'gym' has no environment"):
        compose(words)


def test_an_environment_that_cannot_be_made_is_said_before_anything_starts(mine):
    named = f"rollout.program.path={mine}:Counts"
    words = ["+model=glm4-tiny", "+cluster=local", "rollout.program.name=gym", named]
    for word, what in {
        "rollout.program.options.arguments.turn=3": r"^rollout\.program\.options\.arguments: .*argument 'turn'",
        "rollout.program.options.max_turns=0": r"^rollout\.program\.options\.max_turns: must be at least 1",
    }.items():
        with pytest.raises(SlimeError, match=what):
            compose([*words, word])
    compose([*words, "rollout.program.options.arguments.turns=3"])
