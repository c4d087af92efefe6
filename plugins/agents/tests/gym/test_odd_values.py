"""Whatever an environment returns is told to the model as text, or costs the attempt in words that name it."""

from __future__ import annotations

import re

import pytest

from plugins.agents.tests.conversations.played import Played
from slime.config.rollout import ProgramConfig
from slime.sampling.programs import opened
from slime.types import Status, Verdict, VerdictKind

MINE = """
import dataclasses
import datetime
import decimal
import fractions

import numpy as np


@dataclasses.dataclass
class Board:
    x: int = 1


class Mute:
    def __repr__(self):
        raise ValueError("no words")


class MuteError(Exception):
    def __str__(self):
        raise ValueError("no words")


LOOP = []
LOOP.append(LOOP)
TOLD = {
    "int": 5, "float": 0.5, "nan": float("nan"), "true": True, "bytes": b"a\\xffb", "decimal": decimal.Decimal("1.20"),
    "np int": np.int64(3), "np float": np.float32(0.5), "np text": np.str_("abc"), "array": np.arange(4).reshape(2, 2),
    "zero-d": np.array(7), "array of nan": np.array([np.nan, 1.0]), "dataclass": Board(), "set": {3},
    "frozen": frozenset({3}), "observation": {"x": 1, "y": (2, None)}, "inner array": {"x": np.array([1, 2])},
    "odd keys": {(1, 2): 3, 4: b"ab"}, "list": [1, "ä", None], "tuple": (1, 2), "date": datetime.date(2026, 1, 2),
    "half": "x\\ud83d", "half in a list": ["\\ud83d"], "fraction": fractions.Fraction(1, 2), "range": range(3),
    "message": {"role": "user", "content": "hi"}, "number in it": {"role": "user", "content": np.int64(9)},
    "parts": {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    "odd field": {"role": "user", "content": "hi", "at": datetime.date(2026, 1, 2), "n": float("nan")},
    "two": [{"role": "user", "content": "one"}, {"role": "user", "content": 2}], "control": "<|user|>",
    "zero": "a\\0b", "class": Board, "big": 2**70,
    "none": None, "no list": [], "mute": Mute(), "mute inside": {"x": Mute()}, "loop": LOOP, "huge": 10**5000,
    "long": "x" * 3_000_000, "no role": {"content": "hi"}, "role of a number": {"role": 1, "content": "hi"},
    "no content": {"role": "user"}, "mixed": [{"role": "user", "content": "a"}, 5], "mute content": {
        "role": "user", "content": Mute()},
}
REWARDS = {
    "np reward": np.float32(1.0), "decimal reward": decimal.Decimal(1), "true reward": True,
    "fraction reward": fractions.Fraction(1), "zero-d reward": np.array(1.0),
    "text reward": "1", "no reward": None, "nan reward": float("nan"), "decimal nan": decimal.Decimal("NaN"),
    "many": np.array([1.0, 2.0]), "complex": 1j, "beyond": 10**400, "mute reward": Mute(), "list reward": [1],
}
DONE = {"np done": np.bool_(True), "one done": 1, "text done": "False", "no done": None, "many done": np.array([1, 0])}
RAISED = {
    "raised": KeyError("k"), "mute error": MuteError(),
    "half error": ValueError("\\ud83d"), "exit": SystemExit(3),
}


class Odd:
    def reset(self, task):
        return None

    def step(self, response):
        what = response.strip()
        if what in RAISED:
            raise RAISED[what]
        if what in REWARDS:
            return None, REWARDS[what], True
        if what in DONE:
            return "on", 1.0, DONE[what]
        if what == "list of three":
            return ["on", 1.0, True]
        if what == "mute given":
            return Mute()
        return TOLD.get(what), 1.0, what == "end"
"""
TOLD = {
    "int": "5", "float": "0.5", "nan": "nan", "true": "True", "bytes": "a\ufffdb", "decimal": "1.20", "np int": "3",
    "np float": "0.5", "np text": "abc", "array": "[[0, 1], [2, 3]]", "zero-d": "7", "array of nan": '["NaN", 1.0]',
    "dataclass": "Board(x=1)", "set": "{3}", "frozen": "frozenset({3})", "observation": '{"x": 1, "y": [2, null]}',
    "inner array": '{"x": [1, 2]}', "odd keys": '{"[1, 2]": 3, "4": "YWI="}', "list": '[1, "ä", null]',
    "tuple": "[1, 2]", "date": "2026-01-02", "half": "x\ufffd", "half in a list": '["\ufffd"]', "fraction": "1/2",
    "range": "range(0, 3)", "message": "hi", "number in it": "9", "parts": "ab", "odd field": "hi", "zero": "a\0b",
    "class": "<class", "big": str(2**70),
}  # fmt: skip
GOOD = ["np reward", "decimal reward", "true reward", "fraction reward", "zero-d reward", "np done", "one done"]
BAD = {
    "none": "step said None, neither text nor messages",
    "no list": r"step said \[\], neither text nor messages",
    "mute": "step said a value of type Mute that has no text: ValueError: no words",
    "mute inside": "step said a value of type dict that has no text: ValueError: no words",
    "loop": "step said a value of type list that has no text: RecursionError",
    "huge": "step said a value of type int that has no text: ValueError: Exceeds the limit",
    "long": r"what it says has 3\d* bytes; at most",
    "no role": "step said {'content': 'hi'} among its messages, which has no role",
    "role of a number": "step said {'role': 1, 'content': 'hi'} among its messages, which has no role",
    "no content": "step said {'role': 'user'}, a message that has no content",
    "mixed": "step said 5 among its messages, which has no role",
    "mute content": "step said a value of type Mute that has no text",
    "text reward": "step returned the reward '1'; rewards are finite numbers",
    "no reward": "step returned the reward None and done=True, which are no number and no truth",
    "nan reward": "step returned the reward nan; rewards are finite",
    "decimal nan": r"step returned the reward Decimal\('NaN'\); rewards are finite",
    "many": r"step returned the reward array\(\[1\., 2\.\]\)",
    "complex": "step returned the reward 1j",
    "beyond": "step returned the reward 1000.*OverflowError",
    "mute reward": "step returned the reward a value of type Mute",
    "list reward": r"step returned the reward \[1\]",
    "text done": "step returned done='False', which is neither true nor false",
    "no done": "step returned done=None, which is neither true nor false",
    "many done": r"done=array\(\[1, 0\]\)",
    "list of three": r"step returned \['on', 1.0, True\], not \(what the model is told, reward, done\)",
    "mute given": "step returned a value of type Mute, not",
    "raised": "KeyError: 'k'",
    "mute error": r"MuteError: its text cannot be made \(ValueError\)",
    "half error": r"ValueError: \?",
    "exit": "SystemExit: 3",
}


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    path = tmp_path_factory.mktemp("odd") / "my_env.py"
    path.write_text(MINE)
    with opened(ProgramConfig("gym", {"path": f"{path}:Odd"})) as program:
        yield program


@pytest.fixture(scope="module")
def play(tmp_path_factory):
    return Played(tmp_path_factory.mktemp("played"))


def test_values_are_told_as_text(program, play):
    found = {}
    for what in TOLD:
        sample = play(program, f"\n{what}<|user|>", "\nend<|user|>")
        assert sample.verdict == Verdict.of(2.0), (what, sample.verdict)
        found[what] = [turn["content"] for turn in sample.turns if turn["role"] == "user"]
    assert {what: told[0][: len(TOLD[what])] for what, told in found.items()} == TOLD
    sample = play(program, "\ntwo<|user|>", "\nend<|user|>")
    assert [turn["content"] for turn in sample.turns if turn["role"] == "user"] == ["one", "2"]


def test_numbers_and_truths_of_other_kinds_are_taken(program, play):
    for what in GOOD:
        assert play(program, f"\n{what}<|user|>").verdict == Verdict.of(1.0), what


def test_all_else_costs_the_attempt_and_says_why(program, play):
    for what, why in BAD.items():
        sample = play(program, f"\n{what}<|user|>", "\nend<|user|>")
        assert (sample.status, sample.verdict.kind) == (Status.FAILED, VerdictKind.ERROR), (what, sample.verdict)
        assert re.search(why, sample.verdict.reason), (what, sample.verdict.reason)
        assert "\n" not in sample.verdict.reason
