"""Calls of tools, as chat templates write them, are read back; what is broken is told to the model."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest
from transformers import utils

from plugins.agents.tests.conversations.played import Played
from slime.compose.compose import compose, examine
from slime.errors import SlimeError
from slime.types import Sample, Status
from slime_agents.tools.calls import PROBE, Call, IllFormedError, read_name_json, reader_for
from slime_agents.tools.data import large_numbers, multiplication
from slime_agents.tools.named import named
from slime_agents.tools.options import FunctionOptions, ToolsOptions
from slime_agents.tools.program import Function, Tools

PAGE = Path(__file__).parents[4] / "docs/tools.md"
EXAMPLES = PAGE.parents[1] / "examples"
DATA = Path(__file__).parents[2] / "slime_agents/tools/data"
MINE = '''
import asyncio

def half(number: float) -> float:
    """Halve a number.

    Args:
        number: To be halved.
    """
    return number / 2

async def slow(word: str) -> str:
    """Wait for ever.

    Args:
        word: Anything.
    """
    await asyncio.sleep(3600)

def stuck(word: str) -> str:
    """Never return.

    Args:
        word: Anything.
    """
    while True:
        pass

def vanish(word: str) -> str:
    """End the process.

    Args:
        word: Anything.
    """
    import os

    os._exit(3)

async def ask_twice(task, model):
    conversation = model.conversation()
    turn = await conversation.turn()
    await conversation.turn({"role": "user", "content": f"you said {turn.text}, are you sure?"})
'''


@pytest.fixture
def mine(tmp_path):
    file = tmp_path / "my_tools.py"
    file.write_text(MINE)
    return lambda name: f"{file}:{name}"


def results(sample: Sample) -> list[str]:
    return [message["content"] for message in sample.turns if message["role"] == "tool"]


CALL = 'calculator\n{"expression": "27*58"}<|observation|>'


def test_the_model_calls_the_calculator_and_answers(tmp_path):
    tools = Tools(ToolsOptions(["slime_agents.tools.calculator:calculator"]))
    sample = Played(tmp_path)(tools, CALL, "\n1566<|user|>")
    assert (sample.status, sample.response.strip(), results(sample)) == (Status.COMPLETED, "1566", ["1566"])
    assert sample.metadata == {"turns": 2, "calls": 1, "ill_formed_calls": 0}
    [segment] = sample.segments
    played = Played(tmp_path).tokenizer
    assert played.decode([token for token, mask in zip(segment.tokens, segment.loss_mask, strict=True) if mask]) == (
        CALL + "\n1566<|user|>"
    ), "GLM's stop tokens keep their loss, what the tool said has none"
    assert played.decode(segment.tokens) == CALL + "\n1566<|assistant|>\n1566<|user|>", "no token twice"


def test_nothing_is_imported_in_the_event_loop(tmp_path, monkeypatch):
    """On a busy machine that took transformers longer than a program may go without awaiting anything."""
    threads, schema = [], utils.get_json_schema
    monkeypatch.setattr(
        utils, "get_json_schema", lambda tool: threads.append(threading.current_thread()) or schema(tool)
    )
    Played(tmp_path)(Tools(ToolsOptions(["slime_agents.tools.calculator:calculator"])), CALL, "\n1566<|user|>")
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


def test_what_goes_wrong_in_a_call_is_told_to_the_model(tmp_path, mine):
    options = ToolsOptions([mine("half"), mine("slow"), mine("stuck"), mine("vanish")], timeout_s=3.0, max_turns=10)
    tools = Tools(options)
    sample = Played(tmp_path)(
        tools,
        'half\n{"number": 5}<|observation|>',
        'half\n{"nummer": 5}<|observation|>',
        'half\n{"number": "x"}<|observation|>',
        "half\n{<|observation|>",
        'slow\n{"word": ""}<|observation|>',
        'stuck\n{"word": ""}<|observation|>',
        'vanish\n{"word": ""}<|observation|>',
        'half\n{"number": 3}<|observation|>',
        "double\n{}<|user|>",
    )
    wanted = ["2.5", "error: TypeError: missing a required argument", "error: TypeError: unsupported operand",
              "error: the arguments are not JSON", "error: it did not return within 3 s",
              "error: it did not return within 3 s", "error: the tool's process exited with code 3",
              "1.5"]  # fmt: skip
    assert all(result.startswith(start) for result, start in zip(results(sample), wanted, strict=True))
    assert sample.response == "double\n{}", "what is no tool is an answer"
    assert sample.metadata == {"turns": 9, "calls": 7, "ill_formed_calls": 1}
    tools.close()


def test_python_that_a_model_writes_is_confined(tmp_path):
    """The tool of `slime-rewards`, in a worker of this program: the victims are a file of the same user and the
    network."""
    sandbox = pytest.importorskip("slime_rewards.code.sandbox")
    if lacks := sandbox.missing():
        pytest.skip(f"this machine has no sandbox: {lacks}")
    (tmp_path / "file").write_text("mine")
    path = str(tmp_path / "file")
    programs = [f"print(open({path!r}).read())", f"open({path!r}, 'w')", "import socket; socket.socket()", "print(6*7)"]
    calls = [f"python\n{json.dumps({'code': program})}<|observation|>" for program in programs]
    tools = Tools(ToolsOptions(["slime_rewards.code.tool:python"], timeout_s=60))  # for a machine that is busy
    attempts = [Played(tmp_path)(tools, call, "\n42<|user|>") for call in calls]  # in one, tracebacks fill the limit
    *refused, worked = [result for attempt in attempts for result in results(attempt)]
    tools.close()
    assert worked == "42\n"
    assert len(refused) == 3
    refusals = ("PermissionError: [Errno", "FileNotFoundError: [Errno")  # the second, where namespaces hide the file
    assert all(result.splitlines()[-1].startswith(refusals) for result in refused), refused
    assert (tmp_path / "file").read_text() == "mine"


def test_turns_are_bounded(tmp_path):
    tools = Tools(ToolsOptions(["slime_agents.tools.calculator:calculator"], max_turns=2))
    assert len(results(Played(tmp_path)(tools, CALL, CALL))) == 1


@pytest.mark.parametrize("name", ["qwen3", "qwen2.5, mimo", "glm-4.5", "llama-3"])
def test_the_parser_that_reads_a_template_s_own_calls_is_found(name, tmp_path):
    played = Played(tmp_path, name)
    read = reader_for(played, None)
    call = played.form.call
    tools = [{"type": "function", "function": {"name": "add", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "boolean"}}}}}]  # fmt: skip
    assert [found.name for found in read(call, tools).calls] == ["add"]
    assert read(call, tools).calls[0].arguments["a"] == 1
    assert read(f"<think>\n{call}</think>\n\nIt is 3.", tools) == ("It is 3.", []), "what is thought is not called"
    with pytest.raises(IllFormedError):
        read(call.replace("add", "subtract"), tools)
    assert len(Played(tmp_path, name)(Tools(ToolsOptions(["slime_agents.tools.calculator:calculator"])),
               "It is 1566." + played.form.ends[0]).turns) == 1  # fmt: skip


def test_a_parser_is_named_or_refused(tmp_path):
    played = Played(tmp_path)
    assert reader_for(played, None) is read_name_json
    assert reader_for(played, "qwen25")(
        '<tool_call>\n{"name": "probe_tool", "arguments": {}}\n</tool_call>', [PROBE]
    ).calls == [Call("probe_tool", {})]
    with pytest.raises(SlimeError, match=r"no parser 'qwen26'"):
        reader_for(played, "qwen26")


def test_a_function_of_the_user_s_own_is_a_program(tmp_path, mine):
    sample = Played(tmp_path)(Function(FunctionOptions(mine("ask_twice"))), "\n1<|user|>", "\n2<|user|>")
    assert [message["role"] for message in sample.turns] == ["assistant", "user", "assistant"]
    assert sample.response.strip() == "2"


def test_what_is_not_there_is_said_before_anything_starts(tmp_path, mine):
    words = ("+model=glm4-tiny", "+cluster=local")
    with pytest.raises(SlimeError, match=r"there is no function 'ask_twise'\. Did you mean 'ask_twice'"):
        compose([*words, f"rollout.program.path={mine('ask_twise')}"])
    program = compose([*words, f"rollout.program.path={mine('ask_twice')}"]).rollout.program
    assert (program.name, program.options["path"]) == ("function", mine("ask_twice"))
    (tmp_path / "plain.py").write_text("def plain(task, model): ...")
    with pytest.raises(SlimeError, match=r"Write `async def plain\(task, model\)`"):
        compose([*words, f"rollout.program.path={tmp_path}/plain.py:plain"])
    with pytest.raises(SlimeError, match="there is no file"):
        compose([*words, "rollout.program.name=tools", "rollout.program.options.functions=[nowhere.py:x]"])
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(SlimeError, match="it cannot be imported at line 1: ZeroDivisionError"):
        named(f"{tmp_path}/broken.py:x")
    assert compose(["+model=glm4-tiny", "+cluster=local", "task=calculator"]).rollout.program.name == "tools"


def test_the_page_s_example_works(tmp_path):
    """The tool of examples/tool, and the program and the commands that docs/tools.md shows."""
    text = PAGE.read_text().replace("\\\n", " ")
    shown, program = re.findall(r"```python\n(.*?)```", text, re.S)
    assert shown in (EXAMPLES / "tool/my_tools.py").read_text()
    (tmp_path / "my_agent.py").write_text(program)
    (tmp_path / "data").mkdir()
    for row in multiplication.rows()["python"][:8]:
        with (tmp_path / "data/multiplication-python.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    for line in re.findall(r"^    slime (.*)$", text, re.M):
        words = re.sub(r"my_agent\.py|data/", rf"{tmp_path}/\g<0>", line)
        assert examine(words.split()).problems == []
    tools = Tools(ToolsOptions([f"{EXAMPLES}/tool/my_tools.py:calculator"]))
    assert results(Played(tmp_path)(tools, CALL, "\n1566<|user|>")) == ["1566"]
    agent = Function(FunctionOptions(f"{tmp_path}/my_agent.py:run"))
    assert len(Played(tmp_path)(agent, "\n1565<|user|>", "\n1566<|user|>").turns) == 3


@pytest.mark.parametrize(
    ("written_by", "name"),
    [
        (multiplication, "multiplication-sft"),
        (multiplication, "multiplication-train"),
        (multiplication, "multiplication-heldout"),
        (large_numbers, "large-numbers-train"),
        (large_numbers, "large-numbers-heldout"),
        (large_numbers, "large-numbers-calls"),
    ],
)
def test_the_files_are_what_the_program_writes(written_by, name):
    written = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    assert written == written_by.rows()[name.rsplit("-", 1)[1]]


def test_programs_stand_in_the_place_of_calls(capsys):
    """Each prints what the calculator says, and guesses stay guesses."""
    found = multiplication.rows()
    assert len(found["python"]) == len(found["sft"]) == 5000
    for ours, theirs in zip(found["python"], found["sft"], strict=True):
        (asked, call, *rest), (same, _, *answered) = ours["messages"], theirs["messages"]
        assert asked == same
        if call["content"].startswith("guess="):
            assert ours == theirs
        elif rest:
            exec(json.loads(call["content"].removeprefix("python\n"))["code"])
            assert capsys.readouterr().out == rest[0]["content"] == f"{answered[0]['content']}\n"


def test_held_out_products_are_nowhere_else():
    def problems(name):
        first = [(row.get("messages") or row["prompt"])[0]["content"] for row in multiplication.rows()[name]]
        return {frozenset(text.rstrip("=").split("*")) for text in first}

    assert not problems("heldout") & (problems("sft") | problems("train"))


def test_large_numbers_are_held_out_and_rightly_labelled():
    found = large_numbers.rows()
    texts = {name: {row["prompt"][0]["content"] for row in found[name]} for name in ("heldout", "train")}
    assert not texts["heldout"] & texts["train"]
    for row in found["heldout"]:
        a, b, *c = map(int, re.findall(r"\d+", row["prompt"][0]["content"]))
        right = {"product": lambda a, b: a * b, "sum": lambda a, b, c: a * b + c}
        right |= {"boxes": right["product"], "sold": lambda a, b, c: a * b - c}
        assert int(row["label"]) == right[row["kind"]](a, b, *c)
    for calls, answers in zip(found["calls"][::2], found["calls"][1::2], strict=True):
        question, call = (message["content"] for message in calls["messages"])
        assert question in texts["train"]
        assert json.loads(call.split("\n")[1])["name"] == "calculator"
        assert answers["messages"][:2] == calls["messages"]
        assert answers["messages"][3]["content"] == f"The answer is {answers['messages'][2]['content']}."
