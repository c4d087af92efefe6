"""What this month's packages send to the Responses API and for answers of a form, sent again. To record it again:
`python -m plugins.agents.tests.endpoint.test_items_and_forms PYTHON`, where PYTHON has some of the packages, in other
versions than those recorded."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest

from plugins.agents.tests.endpoint.played import Stage
from slime.types import Status
from slime_agents.endpoint.bodies import MAX_BODY, Bodies
from slime_agents.endpoint.options import EndpointOptions
from slime_agents.endpoint.program import EndpointProgram

HERE = Path(__file__).parent
KEPT = HERE / "recorded/items_and_forms.json"
PACKAGES = {
    "openai_agents": "openai-agents", "pydantic_ai": "pydantic-ai-slim", "langchain": "langchain-openai",
    "agno": "agno", "strands": "strands-agents", "litellm": "litellm", "openai_form": "openai",
    "openai_items_form": "openai", "anthropic_form": "anthropic", "langchain_form": "langchain-openai",
    "langchain_agent_form": "langchain-openai", "pydantic_ai_form": "pydantic-ai-slim",
    "openai_agents_form": "openai-agents", "instructor_form": "instructor", "dspy_form": "dspy", "agno_form": "agno",
    "strands_form": "strands-agents", "smolagents_form": "smolagents",
}  # fmt: skip
"""Of each agent of `items_and_forms.py`, the package."""
CALL = '\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>'


def says(before: str) -> str:
    if '"add"' in before and "<tool_response>" not in before:
        text = f"I add.{CALL}"
    elif '"thought"' in before and '"code"' in before:
        text = json.dumps({"thought": "so", "code": "final_answer('Paris')"})
    elif "city" in before:
        text = '{"city": "Paris", "people": 2}'
    else:
        text = "It is 3."
    return f"<think>\nwhy\n</think>\n\n{text}<|im_end|>"


def counted():
    """Ids of answers are the same each time: clients send them back."""
    numbers = itertools.count()
    return patch("slime_agents.endpoint.attempt.secrets.token_hex", lambda length: f"{next(numbers):0{2 * length}x}")


RECORDED = json.loads(KEPT.read_text()) if KEPT.exists() else []


@pytest.mark.parametrize("kept", RECORDED, ids=[each["agent"] for each in RECORDED])
def test_what_packages_send_is_one_conversation(tmp_path, kept):
    stage, answers = Stage(tmp_path, says), []

    async def replay(task, endpoint):
        async with httpx.AsyncClient(timeout=60) as http:
            for one in kept["requests"]:
                url = f"{endpoint.url}/{one['path']}"
                answers.append(await http.post(url, json=one["body"], headers=one["headers"]))

    with counted():
        sample = stage.play(replay)
    assert [answer.status_code for answer in answers] == [200] * len(answers), [answer.text for answer in answers]
    assert sample.status is Status.COMPLETED, sample.verdict
    stage.check(sample)
    assert sample.metadata["requests"] == len(kept["requests"])
    assert sample.metadata["forks"] == kept["forks"]


def test_every_agent_is_recorded_with_its_version():
    assert [each["agent"] for each in RECORDED] == list(PACKAGES)
    assert all(each["package"] == PACKAGES[each["agent"]] and each["version"] for each in RECORDED)
    forks = {each["agent"]: each["forks"] for each in RECORDED if each["forks"]}
    assert forks == {"dspy_form": 1}, "it asks again in other words"


def record(python: str) -> None:
    kept = {each["agent"]: each for each in RECORDED}
    for agent, package in PACKAGES.items():
        asked = f"from importlib.metadata import version; print(version('{package}'))"
        found = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        if found.returncode or kept.get(agent, {}).get("version") == found.stdout.strip():
            continue
        sent, of = [], Bodies.of

        @asynccontextmanager
        async def noting(self, http, most=MAX_BODY, sent=sent, of=of):
            async with of(self, http, most) as body:
                headers = {name: http.headers[name] for name in ("x-stainless-retry-count",) if name in http.headers}
                sent.append({"path": http.path.partition("/v1/")[2], "headers": headers, "body": json.loads(body)})
                yield body

        options = EndpointOptions(command=f"{python} {HERE}/items_and_forms.py {agent}")
        with tempfile.TemporaryDirectory() as folder, counted(), patch.object(Bodies, "of", noting):
            sample = asyncio.run(Stage(Path(folder), says).make(EndpointProgram(options), timeout_s=120))
        print(agent, found.stdout.strip(), sample.status, sample.verdict, sample.metadata)  # noqa: T201
        if sample.status is Status.COMPLETED and sample.verdict is None:
            kept[agent] = {"agent": agent, "package": package, "version": found.stdout.strip(),
                           "forks": int(sample.metadata["forks"]), "requests": sent}  # fmt: skip
        KEPT.write_text(json.dumps([kept[agent] for agent in PACKAGES if agent in kept], indent=1) + "\n")


if __name__ == "__main__":
    record(sys.argv[1])
