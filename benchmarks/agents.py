"""What agents of published packages do on their default paths: `python benchmarks/agents.py`, which prints a table.

Replays the requests that each sent (`plugins/agents/tests/endpoint/recorded`) at the endpoint, with the scripted
model of its tests. The table has how they were answered, how many conversations they made, and whether the tokens were
kept: whether every request to the engine is a beginning of what is trained on.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from plugins.agents.tests.endpoint.test_frameworks import RECORDED, replayed


def row(recorded: dict) -> str:
    with tempfile.TemporaryDirectory() as folder:
        stage, sample, found = asyncio.run(replayed(recorded["requests"], Path(folder)))
    bodies = [one["body"] for one in recorded["requests"]]
    fields = sorted({name for body in bodies for name in body} - {"model", "messages", "tools"})
    paths = ", ".join(sorted({one["path"] for one in recorded["requests"]}))
    num_answered = sum(answer.status_code == 200 for answer in found)
    try:
        stage.check(sample)
        kept = "yes"
    except AssertionError:
        kept = "**no**"
    cells = [recorded["agent"], f"{recorded['package']} {recorded['version']}", paths, ", ".join(fields) or "-",
             f"{num_answered} of {len(bodies)}", str(int(sample.metadata["forks"]) + 1), kept]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    head = (
        "agent",
        "package",
        "path",
        "fields beside model, messages and tools",
        "answered",
        "conversations",
        "tokens kept",
    )
    print(f"| {' | '.join(head)} |")
    print("|---|---|---|---|---|---|---|")
    for each in RECORDED:
        print(row(each), flush=True)
