"""Records what real clients send: `python -m plugins.programs.endpoint.tests.record PYTHON`. PYTHON has the clients."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from slime_plugin_endpoint.options import EndpointOptions
from slime_plugin_endpoint.program import EndpointProgram
from slime_plugin_endpoint.server import Server

from plugins.programs.endpoint.tests.played import Stage

HERE = Path(__file__).parent
RECORDED = HERE / "recorded"
CLIENTS = ("openai", "litellm", "anthropic", "openai_agents", "pydantic_ai", "smolagents")
CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1,"b":false}}\n</tool_call>'


def says(before: str) -> str:
    """Two calls at first, words afterwards, thinking always; other words for other texts."""
    number = f"{len(before)}.{before.count('<|im_start|>')}"
    calls = f"{CALL}\n{CALL}" if "# Tools" in before and "Add 1" in before and "tool_response" not in before else ""
    return f"<think>\nwhy {number}\n</think>\n\nIt is {number}.\n{calls}<|im_end|>"


async def played(python: str, client: str, folder: Path) -> tuple[Stage, object, list[object]]:
    """An attempt of a client, and the requests that it sent."""
    stage, sent = Stage(folder, says), []
    answered = Server._answered

    async def noted(self, http, dialect):
        body = await http.read()
        headers = {name: http.headers[name] for name in ("x-stainless-retry-count",) if name in http.headers}
        sent.append({"path": http.path.partition("/v1/")[2], "headers": headers, "body": json.loads(body)})
        return await answered(self, http, dialect)

    Server._answered = noted
    try:
        program = EndpointProgram(EndpointOptions(command=f"{python} {HERE}/clients.py {client}"))
        return stage, await stage.make(program, timeout_s=120), sent
    finally:
        Server._answered = answered


def main(python: str) -> None:
    RECORDED.mkdir(exist_ok=True)
    for client in CLIENTS:
        with tempfile.TemporaryDirectory() as folder:
            stage, sample, sent = asyncio.run(played(python, client, Path(folder)))
        print(client, sample.status, sample.verdict, sample.metadata, [len(text) for text in stage.trained(sample)])  # noqa: T201
        (RECORDED / f"{client}.json").write_text(json.dumps(sent, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
