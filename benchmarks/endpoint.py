"""Processor time of the endpoint, by part: `python benchmarks/endpoint.py [--conversations N] [--turns N]`.

A client asks over HTTP from a process of its own; the endpoint asks an engine in a third process, which answers at
once. What is counted is what one process does between them; on a busy machine it grows, too, but less than time of day.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import http.client
import inspect
import json
import statistics
import subprocess
import sys
import tempfile
import time
import types
import urllib.parse
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
WARM = 20
"""Conversations before those that are counted."""
WORDS = "It is so. "
HTTP = "http, the event loop"


class Clock:
    """Processor time by part: at each moment that of the innermost call that is timed."""

    def __init__(self) -> None:
        self.seconds, self._parts, self._since = defaultdict[str, float](float), [HTTP], time.process_time()

    def _turn(self) -> None:
        now = time.process_time()
        self.seconds[self._parts[-1]] += now - self._since
        self._since = now

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        self._turn()
        self._parts.append(name)
        try:
            yield
        finally:
            self._turn()
            self._parts.pop()

    def begin(self) -> None:
        self._turn()
        self.seconds.clear()

    def end(self) -> dict[str, float]:
        self._turn()
        return dict(self.seconds)

    def time(self, owner: Any, name: str, part: str) -> None:
        """Time a function of a class or module. Of a coroutine, what it waits is not counted."""
        function = getattr(owner, name)

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.part(part):
                found = function(*args, **kwargs)
            return self._awaited(found, part) if inspect.iscoroutine(found) else found

        setattr(owner, name, timed)

    @types.coroutine
    def _awaited(self, work: Any, part: str) -> Any:
        step, value = work.send, None
        while True:
            try:
                with self.part(part):
                    waits_for = step(value)
            except StopIteration as end:
                return end.value
            try:
                step, value = work.send, (yield waits_for)
            except BaseException as error:  # noqa: BLE001 because it is the timed coroutine's to handle
                step, value = work.throw, error


def time_parts(clock: Clock) -> None:
    from slime.sampling.generate import Generator
    from slime_agents.conversations.chat_format import ChatFormat
    from slime_agents.endpoint import chat_completions
    from slime_agents.endpoint.attempt import Attempt
    from slime_agents.endpoint.hearing import Hearing
    from slime_agents.endpoint.tree import Tree
    from slime_sglang.engine.driver.client import SGLangClient

    clock.time(chat_completions, "read", "parse")
    clock.time(Tree, "place", "match the history")
    clock.time(Attempt, "_answer", "conversation")
    clock.time(ChatFormat, "first_aside", "suffix difference")
    clock.time(ChatFormat, "behind_aside", "suffix difference")
    clock.time(ChatFormat, "render", "render the template")
    clock.time(ChatFormat, "_encoded", "tokenize")
    clock.time(SGLangClient, "generate", "engine client")
    clock.time(Generator, "text", "detokenize")
    clock.time(Hearing, "read", "take the answer apart")
    clock.time(chat_completions, "whole", "respond")


async def measure(num: int, turns: int, answer_tokens: int) -> None:
    from plugins.agents.tests.endpoint.played import AGENTS, Stage
    from slime.net import Endpoint, Secret
    from slime_agents.endpoint.options import EndpointOptions
    from slime_agents.endpoint.program import EndpointProgram
    from slime_sglang.engine.driver.client import SGLangClient

    clock, found, taken = Clock(), dict[str, float](), list[float]()
    time_parts(clock)

    async def agent(task: Any, endpoint: Any) -> None:
        for numbers in (range(WARM), range(WARM, WARM + num)):
            clock.begin()
            client = await asyncio.create_subprocess_exec(
                sys.executable, __file__, "--client", endpoint.url, str(numbers.start), str(numbers.stop), str(turns),
                stdout=subprocess.PIPE,
            )  # fmt: skip
            said, _ = await client.communicate()
            taken[:] = json.loads(said)
            found.update(clock.end())

    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder), lambda before: "")
        said = (WORDS * answer_tokens)[: answer_tokens - 1] + "<|im_end|>"
        tokens = json.dumps(stage.tokenizer.encode(said, add_special_tokens=False))
        engine = subprocess.Popen([sys.executable, __file__, "--engine", tokens], stdout=subprocess.PIPE, text=True)
        try:
            assert engine.stdout, "it is a pipe"
            client = SGLangClient(Endpoint(engine.stdout.readline().strip(), Secret("any")))
            stage.engine = client  # type: ignore[assignment]
            AGENTS["now"] = agent
            path = f"{Stage.__module__}:now"
            sample = await stage.make(EndpointProgram(EndpointOptions(path=path)), timeout_s=600.0)
            await client.close()
            assert sample.metadata["requests"] == (num + WARM) * turns, sample.verdict
        finally:
            engine.terminate()
            engine.wait()
    for part, seconds in sorted(found.items(), key=lambda each: -each[1]):
        print(f"{part:<42}{1000 * seconds / num / turns:7.3f} ms")
    total = 1000 * sum(found.values()) / num / turns
    print(f"{'processor time of a request':<42}{total:7.3f} ms")
    print(f"{'time of day of a request, p50':<42}{1000 * statistics.median(taken):7.3f} ms")


def ask(url: str, numbers: range, turns: int) -> None:
    """The client: each request has the history of those before it."""
    parts = urllib.parse.urlparse(url)
    assert parts.hostname, "a URL of the endpoint"
    connection, taken = http.client.HTTPConnection(parts.hostname, parts.port), list[float]()
    for number in numbers:
        messages = [{"role": "user", "content": f"{number}. " + "What? " * 50}]
        for _ in range(turns):
            body = json.dumps({"messages": messages})
            began = time.perf_counter()
            connection.request("POST", f"{parts.path}/chat/completions", body, {"content-type": "application/json"})
            answer = connection.getresponse().read()
            taken.append(time.perf_counter() - began)
            messages += [json.loads(answer)["choices"][0]["message"], {"role": "user", "content": "And then?"}]
    print(json.dumps(taken))


def serve(tokens: list[int]) -> None:
    """The engine: it gives the same answer to everybody, as SGLang writes it down."""
    from aiohttp import web

    meta = {"output_token_logprobs": [[-0.5, token, None] for token in tokens], "finish_reason": {"type": "stop"}}
    answer = json.dumps({"meta_info": {**meta, "weight_version": "1"}})

    async def generate(request: web.Request) -> web.Response:
        await request.read()
        return web.Response(text=answer, content_type="application/json")

    async def run() -> None:
        app = web.Application(client_max_size=2**30)
        app.add_routes([web.post("/generate", generate)])
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


def main(given: argparse.Namespace) -> None:
    from slime.imports import collect_rarely
    from slime.time_limit import often

    collect_rarely()  # this and what follows as a run does
    with asyncio.Runner() as runner, often():
        runner.run(measure(given.conversations, given.turns, given.answer_tokens))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        ask(sys.argv[2], range(int(sys.argv[3]), int(sys.argv[4])), int(sys.argv[5]))
    elif sys.argv[1:2] == ["--engine"]:
        serve(json.loads(sys.argv[2]))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--conversations", type=int, default=100)
        parser.add_argument("--turns", type=int, default=8, help="of a conversation")
        parser.add_argument("--answer-tokens", type=int, default=200)
        given = parser.parse_args()
        main(given)
