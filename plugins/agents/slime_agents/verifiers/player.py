"""Run by the interpreter that has verifiers and its environments, never by slime's: it imports nothing of slime.

    python -P player.py rows '{"id": "TASKSET"}'     # a line of JSON for each task
    python -P player.py                              # plays the task of one line of standard input, as an agent program

Written for verifiers 0.4.0.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import urllib.request
from typing import Any

import verifiers.v1 as vf
from verifiers.v1.utils.loaders import load_environment


async def _here(runtime: Any, source: str, env: Any = None, *, activate: bool = True) -> list[str]:
    await runtime.write("chat.py", source.encode())
    return [sys.executable, "chat.py"]


async def play(taskset: dict[str, Any], row: int) -> None:
    vf.Runtime.prepare_uv_script = _here  # because this interpreter has what its programs need; uv would fetch it
    agent = {"harness": {"id": "null"}, "runtime": {"type": "subprocess"}}
    env = load_environment(vf.SingleAgentEnvConfig(taskset=taskset, agent=agent))
    tasks = list(env.taskset.include(idx=[f"{row}:{row + 1}"]))
    if len(tasks) != 1:
        sys.exit(f"task set {taskset['id']} has no task {row}")
    client = vf.EvalClientConfig(base_url=os.environ["OPENAI_BASE_URL"], api_key_var="OPENAI_API_KEY")
    async with env.serving():
        [slot] = env.slots(tasks[0], 1)
        episode = await env.run_slot(slot, vf.ModelContext(client=client, model="policy", sampling={}))
    [trace] = episode.traces
    if not episode.ok:
        sys.exit("; ".join(f"{error.type}: {error.message}" for error in [*episode.errors, *trace.errors]))
    parts = {name: value for name, value in trace.metrics.items() if value is not None}
    said = json.dumps({"reward": trace.reward, "parts": parts}).encode()
    urllib.request.urlopen(os.environ["SLIME_VERDICT_URL"], data=said)


def tell(taskset: dict[str, Any]) -> None:
    for task in load_environment(vf.SingleAgentEnvConfig(taskset=taskset)).taskset:
        prompt = [{"role": "user", "content": task.data.prompt_text}]
        line = {"prompt": prompt, "label": str(task.data.idx), "taskset": taskset, "row": task.data.idx}
        sys.stdout.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    if sys.argv[1:2] == ["rows"]:
        tell(json.loads(sys.argv[2]))
    else:
        task = json.loads(sys.stdin.readline())["metadata"]
        asyncio.run(play(task["taskset"], task["row"]))
