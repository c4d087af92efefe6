"""Records what real clients send: `python -m plugins.agents.tests.endpoint.record PYTHON [frameworks]`.

PYTHON has the clients, or some of the frameworks.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from plugins.agents.tests.endpoint.played import Stage
from slime.types import Sample, Status
from slime_agents.endpoint.bodies import MAX_BODY, Bodies
from slime_agents.endpoint.options import EndpointOptions
from slime_agents.endpoint.program import EndpointProgram

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
CLIENTS = ("openai", "litellm", "anthropic", "openai_agents", "pydantic_ai", "smolagents")
FRAMEWORKS = RECORDED / "frameworks.json"
PACKAGES = {
    "openai_agents": "openai-agents", "pydantic_ai": "pydantic-ai-slim", "pydantic_ai_anthropic": "pydantic-ai-slim",
    "langchain": "langchain-openai", "smolagents_code": "smolagents", "smolagents_calls": "smolagents",
    "anthropic": "anthropic", "litellm": "litellm", "instructor": "instructor", "dspy": "dspy", "agno": "agno",
    "strands": "strands-agents",
}  # fmt: skip
"""Of each agent of `frameworks.py`, the package."""
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1,"b":false}}\n</tool_call>'


def says(before: str) -> str:
    """Two calls at first, words afterwards, thinking always; other words for other texts."""
    number = f"{len(before)}.{before.count('<|im_start|>')}"
    calls = f"{CALL}\n{CALL}" if "# Tools" in before and "Add 1" in before and "tool_response" not in before else ""
    return f"<think>\nwhy {number}\n</think>\n\nIt is {number}.\n{calls}<|im_end|>"


@contextmanager
def noted() -> Iterator[list[dict[str, Any]]]:
    """What is sent to endpoints meanwhile."""
    sent, of = list[dict[str, Any]](), Bodies.of

    @asynccontextmanager
    async def noting(self, http, most=MAX_BODY):
        async with of(self, http, most) as body:
            headers = {name: http.headers[name] for name in ("x-stainless-retry-count",) if name in http.headers}
            sent.append({"path": http.path.partition("/v1/")[2], "headers": headers, "body": json.loads(body)})
            yield body

    Bodies.of = noting
    try:
        yield sent
    finally:
        Bodies.of = of


async def played(command: str, folder: Path, say: Callable[[str], str]) -> tuple[Stage, Sample, list[dict[str, Any]]]:
    """An attempt of a client, and the requests that it sent."""
    stage = Stage(folder, say)
    with noted() as sent:
        return stage, await stage.make(EndpointProgram(EndpointOptions(command=command)), timeout_s=120), sent


def answers(before: str) -> str:
    """What an agent that adds expects: one call or one piece of code, and then the answer; thinking always."""
    numbers, said = '{"a": 1, "b": 2}', before.rpartition("<|im_start|>user")[2]
    if "[[ ## answer ## ]]" in before:
        text = "[[ ## reasoning ## ]]\nso\n\n[[ ## answer ## ]]\n3\n\n[[ ## completed ## ]]"
    elif '"name": "Sum"' in before:
        text = '<tool_call>\n{"name": "Sum", "arguments": {"total": 3}}\n</tool_call>'
    elif "final_answer" in before and "<code>" in before:
        text = "I add.\n<code>\n" + ("final_answer(3)" if "Observation" in said else "print(add(1, 2))") + "\n</code>"
    elif "final_answer" in before and ("tool_response" in said or "Observation" in said):
        text = '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "3"}}\n</tool_call>'
    elif "tool_response" in said or "Sure?" in said:
        text = "It is 3."
    else:
        name = "add_numbers" if "add_numbers" in before else "add"
        text = f'I add.\n<tool_call>\n{{"name": "{name}", "arguments": {numbers}}}\n</tool_call>'
    return f"<think>\nwhy\n</think>\n\n{text}<|im_end|>"


def of_frameworks(python: str) -> None:
    """Add to `recorded/frameworks.json` what the agents of `frameworks.py` send that PYTHON has the packages of."""
    kept = {each["agent"]: each for each in json.loads(FRAMEWORKS.read_text() if FRAMEWORKS.exists() else "[]")}
    for agent, package in PACKAGES.items():
        asked = f"from importlib.metadata import version; print(version('{package}'))"
        found = subprocess.run([python, "-c", asked], capture_output=True, text=True, check=False)
        if found.returncode:
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = f"{python} {HERE}/frameworks.py {agent}"
            _, sample, sent = asyncio.run(played(command, Path(folder), answers))
        print(agent, found.stdout.strip(), sample.status, sample.verdict, sample.metadata, len(sent))  # noqa: T201
        if sample.status is Status.COMPLETED:
            kept[agent] = {"agent": agent, "package": package, "version": found.stdout.strip(),
                           "forks": int(sample.metadata["forks"]), "requests": sent}  # fmt: skip
    FRAMEWORKS.write_text(json.dumps([kept[agent] for agent in PACKAGES if agent in kept], indent=1) + "\n")


def main(python: str) -> None:
    RECORDED.mkdir(exist_ok=True)
    for client in CLIENTS:
        with tempfile.TemporaryDirectory() as folder:
            command = f"{python} {HERE}/clients.py {client}"
            stage, sample, sent = asyncio.run(played(command, Path(folder), says))
        print(client, sample.status, sample.verdict, sample.metadata, [len(text) for text in stage.trained(sample)])  # noqa: T201
        (RECORDED / f"{client}.json").write_text(json.dumps(sent, indent=1) + "\n")


if __name__ == "__main__":
    (of_frameworks if sys.argv[2:] == ["frameworks"] else main)(sys.argv[1])
