"""Odd arguments and results cost no attempt: the model is told what came of them, and goes on."""

from __future__ import annotations

import pytest

from plugins.agents.tests.conversations.played import Played
from slime.types import Status
from slime_agents.tools.calls import Call, IllFormedError, read_name_json
from slime_agents.tools.options import ToolsOptions
from slime_agents.tools.program import Tools

MINE = '''
import json

def odd(what: str):
    """Return something odd.

    Args:
        what: Which.
    """
    loop = []
    loop.append(loop)
    deep = []
    for _ in range(5000):
        deep = [deep]

    class Hostile:
        def __str__(self):
            raise KeyboardInterrupt("no text")

    class Half(str):
        pass

    found = {
        "half": "x\\ud83d", "half in a list": ["\\udfff"], "a text of its own": Half("mine"), "loop": loop,
        "deep": deep, "big": 10**5000, "int": 2**70,
        "nan": float("nan"), "bytes": b"\\xff", "set": {1}, "keys": {(1, 2): 3}, "hostile": Hostile(), "none": None,
        "empty": "", "long": "x" * 3_000_000, "control": "<|user|>", "zero": "a\\0b", "generator": (n for n in [1]),
        "class": Half, "false": False,
    }
    return found[what]

def same(a: object):
    """Say it again.

    Args:
        a: Anything.
    """
    return repr(a)[:60]
'''
SAYS = {
    "half": "x\ufffd",
    "half in a list": '["\ufffd"]',
    "a text of its own": "mine",
    "loop": "error: ValueError",
    "deep": "error: RecursionError",
    "big": "error: ValueError",
    "int": str(2**70),
    "nan": "NaN",
    "bytes": "\"b'\\\\xff'\"",
    "set": '"{1}"',
    "keys": "error: TypeError",
    "hostile": "error: the tool's process was killed by SIGINT",
    "none": "null",
    "empty": "(nothing)",
    "long": "error: what it says has 30001",
    "control": "<",
    "zero": "a\0b",
    "generator": '"<generator',
    "class": '"<class',
    "false": "false",
}
ARGUMENTS = {
    "18446744073709551616": "18446744073709551616", "-9223372036854775809": "-9223372036854775809",
    r'"\ud83d"': "'\\ud83d'", r'"\ude00\ud83d"': "'\\ude00\\ud83d'", "NaN": "nan", "[Infinity]": "[inf]",
    "1e999": "inf",
    "[" * 99 + "]" * 99: "[[[", r'"\u0000"': "'\\x00'",
}  # fmt: skip


@pytest.fixture
def tools(tmp_path):
    file = tmp_path / "odd_tools.py"
    file.write_text(MINE)
    made = Tools(ToolsOptions([f"{file}:odd", f"{file}:same"], max_turns=40, max_result_chars=60))
    yield made
    made.close()


def told(sample):
    assert sample.status is Status.COMPLETED, sample.verdict
    return [message["content"] for message in sample.turns if message["role"] == "tool"]


def test_odd_results_are_told_to_the_model(tmp_path, tools):
    calls, said = [f'odd\n{{"what": "{what}"}}<|observation|>' for what in SAYS], []
    for some in (calls[:7], calls[7:14], calls[14:]):
        said += told(Played(tmp_path)(tools, *some, "\nso<|user|>"))
    found = dict(zip(SAYS, said, strict=True))
    assert {what: text for what, text in found.items() if not text.startswith(SAYS[what])} == {}
    for text in found.values():
        text.encode()


def test_odd_arguments_reach_the_function(tmp_path, tools):
    calls, found = [f'same\n{{"a": {arguments}}}<|observation|>' for arguments in ARGUMENTS], []
    for some in (calls[:6], calls[6:]):  # so that each has room
        found += told(Played(tmp_path)(tools, *some, "\nso<|user|>"))
    pairs = [
        (text[:80], start) for text, start in zip(found, ARGUMENTS.values(), strict=True) if not text.startswith(start)
    ]
    assert pairs == []


@pytest.mark.parametrize("arguments", ["[" * 5000, '{"a": 1%s}' % ("0" * 5000), '{"a": %s}' % ("[" * 5000)])
def test_what_python_cannot_read_is_ill_formed(arguments):
    schema = {"type": "function", "function": {"name": "same"}}
    with pytest.raises(IllFormedError, match="the arguments are not JSON"):
        read_name_json(f"same\n{arguments}", [schema])
    assert read_name_json('same\n{"a": 1}', [schema]).calls == [Call("same", {"a": 1})]
