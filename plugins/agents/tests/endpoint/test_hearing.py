"""What reads calls is there before anybody asks: a first request takes no longer than another."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from slime_testing.patience import run_within

ATTEMPT = """
import asyncio, sys
from pathlib import Path
from plugins.agents.tests.endpoint.played import END, Stage, program_of

PARSERS = "sglang.srt.function_call.function_call_parser", "sglang.srt.entrypoints.openai.protocol"
there = lambda: [name in sys.modules for name in PARSERS]
parser, wanted = sys.argv[2], sys.argv[3] == "True"
stage = Stage(Path(sys.argv[1]), lambda before: f"6{END}")

async def agent(task, endpoint):
    assert there() == [wanted] * 2, there()
    async with __import__("openai").AsyncOpenAI(base_url=endpoint.url, api_key=endpoint.key) as chat:
        tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
        talk = [{"role": "user", "content": "1 + 2"}]
        answer = await chat.chat.completions.create(model="any", messages=talk, tools=[tool])
        assert answer.choices[0].message.content == "6"

assert there() == [False] * 2, there()
sample = stage.play(agent, parser=parser or None)
assert sample.status.name == "COMPLETED", sample.verdict
"""


@pytest.mark.slow
@pytest.mark.parametrize(("parser", "wanted"), [("", True), ("qwen25", True), ("name-json", False)])
def test_parsers_are_imported_before_the_agent_begins(parser: str, wanted: bool, tmp_path: Path) -> None:
    """In a process of its own, where nothing has imported them."""
    root = Path(__file__).parents[4]
    done = run_within(200, [sys.executable, "-c", ATTEMPT, str(tmp_path), parser, str(wanted)], cwd=root)
    assert done.returncode == 0, done.stdout + done.stderr
