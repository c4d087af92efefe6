"""The tool `python`, and what a plan says of the sandbox. In the program `tools` it is tried by that plugin's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime import plugins
from slime.compose.compose import compose, examine
from slime.errors import SlimeError
from slime.plan.document import document
from slime.plan.report import report
from slime.sizes.model import ModelSizes
from slime.topology.topology import read_topology
from slime_rewards.code import sandbox
from slime_rewards.code.tool import python
from slime_rewards.code.uses import TOOL, SandboxPart

WORDS = ["+model=glm4-tiny", "+cluster=local"]
DATA = Path(__file__).with_name("data") / "problems.jsonl"
CODE = [*WORDS, "reward.name=code", f"data.path={DATA}", "eval.path=null"]
SET = f"{{path: {DATA}, reward: code}}"
TOOLS = ["rollout.program.name=tools", f"rollout.program.options.functions=[{TOOL}]"]

needs_sandbox = pytest.mark.skipif(bool(sandbox.missing()), reason=f"this machine has no sandbox: {sandbox.missing()}")


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print(2**10)", "1024\n"),
        ("import math\ndef f(): return math.factorial(5)\nif __name__ == '__main__': print(f())", "120\n"),
        ("print(1)\n1 / 0", "ZeroDivisionError: division by zero\n"),
        ("x = (", "SyntaxError: '(' was never closed\n"),
        ("raise SystemExit(3)", "error: it ended with 3"),
        ("print('\ud800')", "?\n"),
        ("x = 1", ""),
    ],
)
def test_the_model_is_told_what_its_program_prints_and_how_it_fails(code: str, told: str) -> None:
    assert python(code).endswith(told)
    assert "confine.py" not in python(code), "no line of a traceback is slime's"


@needs_sandbox
def test_output_is_bounded() -> None:
    text = python("while True: print('x' * 1000)")
    assert text.count("x") <= 1 << 16
    assert "error: it" in text


def test_the_schema_of_the_tool_can_be_made() -> None:
    """From its docstring and types, which the chat template shows the model."""
    utils = pytest.importorskip("transformers.utils")
    schema = utils.get_json_schema(python)["function"]
    assert schema["parameters"]["required"] == ["code"]
    assert schema["parameters"]["properties"]["code"] == {
        "type": "string", "description": "The program. Print what you want to see."
    }  # fmt: skip


def line(words: list[str]) -> str:
    composed = examine(words)
    assert composed.problems == []
    text = report(composed, plugins.load()).partition("\nsandbox\n")[2].partition("\n")[0].strip()
    assert document(composed, plugins.load())["sandbox"] == (text or None)
    return text


@needs_sandbox
def test_a_plan_says_what_confines_programs() -> None:
    landlock, namespaces = sandbox.features()
    scopes = "with" if landlock >= 6 else "without"
    confined = f"seccomp, Landlock {landlock} {scopes} scopes, {'' if namespaces else 'no '}namespaces"
    assert line([*CODE]) == confined
    assert line([*WORDS, f"+data.sets.code={SET}"]) == confined
    assert line([*CODE, "reward.options.sandbox=http://host:8080"]) == ""
    assert line(WORDS) == ""
    unconfined = line([*CODE, "reward.options.unconfined=true"])
    assert unconfined == f"{confined}; the reward runs unconfined (unconfined=true)"


@needs_sandbox
def test_a_plan_says_what_confines_the_tool() -> None:
    pytest.importorskip("slime_agents.tools")
    assert line([*WORDS, *TOOLS]).startswith("seccomp, Landlock ")


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ([f"+data.sets.code={SET}"], "data.sets.code.reward=code"),
        ([f"+eval.sets.code={SET}"], "eval.sets.code.reward=code"),
        (TOOLS, f"rollout.program.options.functions: the sandbox of {TOOL}"),
    ],
)
def test_where_nothing_confines_sets_and_tools_are_refused(
    words: list[str], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if words is TOOLS:
        pytest.importorskip("slime_agents.tools")
    monkeypatch.setattr(sandbox, "missing", lambda: "the kernel has no Landlock")
    with pytest.raises(SlimeError, match="cannot be had here: the kernel has no Landlock") as caught:
        compose([*WORDS, *words])
    assert key in str(caught.value)
    topology = read_topology(examine([*WORDS, *words]).cfg)
    [(_, [told])] = SandboxPart(ModelSizes(topology, {}, [])).sections()
    assert told.strip() == "none: the kernel has no Landlock"
