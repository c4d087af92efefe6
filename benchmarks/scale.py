"""What many attempts at once cost: core's processor time of a turn, memory of an attempt, seconds until all have ended.

    python benchmarks/scale.py                                       # 8,192 attempts of 5 turns
    python benchmarks/scale.py --attempts 1024 --answer-tokens 1000
    python benchmarks/scale.py --attempts 128 --latency 3 --calls    # which functions call how many others

Every attempt goes the way of a run: sampler, pipeline, conversation by a chat template, requests over HTTP, and a
verdict. The engine is a process of its own, which gives each request an answer of the same tokens, after `--latency`
seconds in the mean. What is counted is what the driver's process does; the program of the attempts does nothing
but say something, and belongs to it. Then as many attempts are begun again, and cancelled when all wait for the
engine in their second turn: left as a run does that ends, and aborted as a step does that has enough.

Each attempt has a connection of its own: the limit of open files (`ulimit -n`) has to be above their number.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
WORDS = "It is so. "
ASKED = "What of it? " * 20
PLACES = 100
"""Open files beside connections."""


class Says:
    """A program that goes on for some turns. It has no tools: what these take is not core's."""

    in_driver = True

    def __init__(self, turns: int) -> None:
        self._turns, self.when_at = turns, lambda turn: None

    async def run(self, task: Any, model: Any) -> None:
        conversation = model.conversation()
        for turn in range(self._turns):
            self.when_at(turn)
            await conversation.turn(*([{"role": "user", "content": "And then?"}] if turn else []))


class Scorer:
    def judges_groups(self, prompt: Any) -> bool:
        return False

    async def score(self, sample: Any) -> Any:
        from slime.types import Verdict

        return Verdict.of(float(sample.index % 2))


class Setting:
    """A sampler whose engine is the other process."""

    def __init__(self, folder: Path, start: Callable[[list[int]], str], args: argparse.Namespace) -> None:
        from plugins.agents.tests.conversations.formats import FORMATS, tokenizer_of
        from slime.config.schema import DataConfig, RewardConfig, RolloutConfig, SamplingConfig
        from slime.engine_client.engine_set import EngineSet
        from slime.net import Endpoint, Secret
        from slime.sampling.sampler import Sampler
        from slime_agents.conversations.conversation import Conversations
        from slime_sglang.engine.driver.client import SGLangClient

        (folder / "generation_config.json").write_text("{}")
        tokenizer = tokenizer_of(FORMATS["qwen3"], str(folder))
        ids = tokenizer.encode((WORDS * args.answer_tokens)[: args.answer_tokens - 1], add_special_tokens=False)
        [end] = tokenizer.convert_tokens_to_ids(["<|im_end|>"])
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": end}))
        ids.append(end)
        self.program = Says(args.turns)
        limit = args.turns * (args.answer_tokens + 100)
        self.sampling = SamplingConfig(max_response_tokens=limit)
        cfg = RolloutConfig(max_requests_per_engine=args.attempts, sampling=self.sampling)
        self.client = SGLangClient(Endpoint(start(ids), Secret("any")))
        self.chat = Conversations(tokenizer, DataConfig(path=""), 10_000)
        engines = EngineSet([self.client])
        self.sampler = Sampler(
            cfg, RewardConfig(name="-"), 5, engines, tokenizer, self.program, Scorer(), chat=self.chat
        )

    def begin(self, attempts: int) -> Any:
        """A pipeline that has begun this number of attempts, 8 of a prompt."""
        from slime.types import Group, Prompt, Sample

        pipeline = self.sampler.begin(self.sampling, 1, attempts)
        for number in range(attempts // 8):
            messages = ({"role": "user", "content": f"{number}. {ASKED}"},)
            prompt = Prompt(f"0/{number}", messages, tuple(self.chat.first(messages, ())))
            pipeline.submit(Group(prompt, [Sample(prompt, index) for index in range(8)]))
        return pipeline

    async def make(self, attempts: int) -> list[Any]:
        pipeline, groups = self.begin(attempts), []
        while pipeline.active:
            groups.append(await pipeline.next_finished())
        await pipeline.cancel()
        return groups

    async def stop(self, attempts: int, how: str) -> float:
        """Seconds until all have ended that wait for the engine in their second turn."""
        pipeline, at_second, all_wait = self.begin(attempts), 0, asyncio.Event()

        def count(turn: int) -> None:
            nonlocal at_second
            at_second += turn == 1
            if at_second == attempts:
                all_wait.set()

        self.program.when_at = count
        filling = asyncio.ensure_future(pipeline.next_finished())
        await all_wait.wait()
        await self.settled(attempts)
        filling.cancel()
        await asyncio.gather(filling, return_exceptions=True)
        began = time.perf_counter()
        await getattr(pipeline, how)()
        taken = time.perf_counter() - began
        await pipeline.cancel()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not any("Pipeline._generate" in repr(task) for task in left), "no attempt is left"
        self.program.when_at = lambda turn: None
        return taken

    async def hold(self) -> None:
        """Have the engine answer first turns alone."""
        longest = len(self.chat.first([{"role": "user", "content": f"{10**6}. {ASKED}"}], ()))
        url, body = f"{self.client.url}/hold", {"num_tokens": longest + 1}
        async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
            response.raise_for_status()

    async def settled(self, attempts: int) -> None:
        """Until the engine has every request."""
        while (await self.client.load())[0] < attempts:
            await asyncio.sleep(0.2)


async def measure(args: argparse.Namespace, folder: Path, start: Callable[[list[int]], str]) -> None:
    from slime.imports import collect_rarely, importing
    from slime.time_limit import often

    with importing():  # as a run does
        setting = Setting(folder, start, args)
    collect_rarely()
    with often():  # as well
        await count(setting, args)
    await setting.client.close()


async def count(setting: Setting, args: argparse.Namespace) -> None:
    await setting.make(8 * 8)
    if args.calls:
        await count_calls(setting, args.attempts, args.attempts * args.turns)
        return
    memory, clock = psutil.Process().memory_info().rss, time.process_time()
    began = time.perf_counter()
    groups = await setting.make(args.attempts)
    seconds, spent = time.perf_counter() - began, time.process_time() - clock
    samples = [sample for group in groups for sample in group.samples]
    assert len(samples) == args.attempts
    assert all(sample.reward == sample.index % 2 for sample in samples), "each has its verdict"
    for sample in samples:
        [segment] = sample.segments
        assert sum(segment.loss_mask) == args.turns * args.answer_tokens, "each turn was sampled once"
    grown = psutil.Process().memory_info().rss - memory
    turns = args.attempts * args.turns
    print(f"{'attempts':<46}{args.attempts:>9,}")
    print(f"{'turns a second':<46}{turns / seconds:>9,.0f}")
    print(f"{'processor time of a turn':<46}{1000 * spent / turns:>9.3f} ms")
    print(f"{'memory of an attempt, tokens included':<46}{grown / args.attempts / 2**10:>9.1f} KiB", flush=True)
    del groups, samples
    if args.turns > 1:
        await setting.hold()
        for how, name in (("cancel", "until all are cancelled"), ("abort", "until all are aborted")):
            print(f"{name:<46}{await setting.stop(args.attempts, how):>9.3f} s", flush=True)


async def count_calls(setting: Setting, attempts: int, turns: int) -> None:
    """Calls of Python and of C, by the function of slime that made them, whichever libraries are between."""
    counts = Counter[str]()

    def called(frame: Any, event: str, _: object) -> None:
        if event not in ("call", "c_call"):
            return
        while frame and not frame.f_code.co_filename.startswith(str(ROOT)):
            frame = frame.f_back
        name = f"{Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}" if frame else ""
        counts["the event loop" if not name or name.startswith("scale.py: main") else name] += 1

    sys.setprofile(called)
    await setting.make(attempts)
    sys.setprofile(None)
    print(f"{'calls a turn':<46}{counts.total() / turns:>9.1f}")
    for name, number in counts.most_common(20):
        print(f"{name:<46}{number / turns:>9.1f}")


def serve(tokens: list[int], latency: float) -> None:
    """The engine. Once it is told to hold, it answers second turns when they are aborted and not before."""
    from aiohttp import web

    score = [[-0.5, token, None] for token in tokens]
    draw, aborted, inside = random.Random(3), asyncio.Event(), 0
    holds_from = 1 << 60

    def said(reason: str) -> str:
        meta = {"output_token_logprobs": score if reason == "stop" else [], "finish_reason": {"type": reason}}
        return json.dumps({**meta, "weight_version": "1"})

    done, cut = said("stop"), said("abort")

    async def answer(num_tokens: int) -> str:
        nonlocal inside
        inside += 1
        try:
            if num_tokens >= holds_from:
                await aborted.wait()
                return cut
            await asyncio.sleep(draw.uniform(0.5, 1.5) * latency)
            return done
        finally:
            inside -= 1

    async def generate(request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        if not body.get("stream"):
            text = f'{{"meta_info": {await answer(len(body["input_ids"]))}}}'
            return web.Response(text=text, content_type="application/json")
        response = web.StreamResponse()
        await response.prepare(request)

        async def placed(index: int, ids: list[int]) -> None:
            text = await answer(len(ids))
            await response.write(f'data: {{"index": {index}, "meta_info": {text}}}\n\n'.encode())

        await asyncio.gather(*(placed(index, ids) for index, ids in enumerate(body["input_ids"])))
        await response.write(b"data: [DONE]\n\n")
        return response

    async def hold(request: web.Request) -> web.Response:
        nonlocal holds_from, latency
        holds_from, latency = (await request.json())["num_tokens"], 0.0
        return web.Response()

    async def abort(_: web.Request) -> web.Response:
        aborted.set()
        return web.Response()

    async def loads(_: web.Request) -> web.Response:
        rank = {"num_running_reqs": inside, "num_waiting_reqs": 0, "num_used_tokens": time.monotonic_ns()}
        return web.json_response({"loads": [rank]})

    async def run() -> None:
        app = web.Application(client_max_size=2**30)
        posts = {"/generate": generate, "/hold": hold, "/abort_request": abort}
        app.add_routes([*(web.post(path, does) for path, does in posts.items()), web.get("/v1/loads", loads)])
        runner = web.AppRunner(app, access_log=None, handler_cancellation=True)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0, backlog=8192).start()
        print(f"http://127.0.0.1:{runner.addresses[0][1]}", flush=True)
        await asyncio.Event().wait()

    asyncio.run(run())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, default=8192, help="a multiple of 8")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--answer-tokens", type=int, default=200)
    parser.add_argument("--latency", type=float, default=20.0, help="seconds that an answer takes in the mean")
    parser.add_argument("--calls", action="store_true", help="count calls, and not time")
    args = parser.parse_args()
    if args.attempts % 8:
        sys.exit("--attempts is a multiple of 8")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = args.attempts + PLACES
    if most != resource.RLIM_INFINITY and most < needed:
        sys.exit(f"{needed} open files are needed, the limit is {most}: raise it (ulimit -Hn), or lower --attempts")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
    engines: list[subprocess.Popen[str]] = []

    def start(tokens: list[int]) -> str:
        command = [sys.executable, __file__, "--engine", json.dumps(tokens), str(args.latency)]
        engines.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert engines[0].stdout, "it is a pipe"
        return engines[0].stdout.readline().strip()

    with tempfile.TemporaryDirectory() as folder:
        try:
            asyncio.run(measure(args, Path(folder), start))
        finally:
            for engine in engines:
                engine.terminate()
                engine.wait()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--engine"]:
        serve(json.loads(sys.argv[2]), float(sys.argv[3]))
    else:
        main()
