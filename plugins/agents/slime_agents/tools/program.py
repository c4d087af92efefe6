"""The programs `tools` and `function`."""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Mapping
from typing import Any

from guarded_workers.wire import FaultError, Setup
from slime.contracts import Responder
from slime.errors import SlimeError
from slime.time_limit import failure
from slime.types import Task, Verdict
from slime.workers import WorkerPool
from slime_agents.tools.calls import Call, CallReader, IllFormedError, reader_for
from slime_agents.tools.named import named
from slime_agents.tools.options import FunctionOptions, ToolsOptions


class Tools:
    """The model answers, or calls tools and goes on with what they return, until it answers."""

    in_driver = True  # because SGLang's parsers take 500 MB and seconds to import

    def __init__(self, options: ToolsOptions) -> None:
        if not options.functions:
            todo = "Name them: rollout.program.options.functions=[my_tools.py:calculator]"
            raise SlimeError("the program 'tools' has no tool", where="rollout.program.options.functions", todo=todo)
        self._options = options
        self._functions = {function.__name__: function for function in map(named, options.functions)}
        self._schemas: list[Mapping[str, Any]] = []
        self._reader: CallReader | None = None
        self._preparing = asyncio.Lock()
        setup = Setup(
            kind="tool",
            name=", ".join(self._functions),
            options={"functions": options.functions},
            where="rollout.program.options.functions",
            key="rollout.program.options",
            servant="slime_agents.tools.caller:Caller",
            memory_mb=options.memory_mb,
        )
        self._pool = WorkerPool(setup, 1, options.num_workers, options.environment)

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        async with self._preparing:  # in a thread, because transformers and SGLang's parsers take seconds to import
            self._reader = self._reader or await asyncio.to_thread(self._prepare, model)
        conversation = model.conversation(tools=self._schemas)
        turn, counts = await conversation.turn(), Counter(turns=1, calls=0, ill_formed_calls=0)
        for _ in range(self._options.max_turns - 1):
            if turn.finish == "length" or not (results := await self._results(turn.full_text, counts)):
                break
            turn = await conversation.turn(*results)
            counts["turns"] += bool(turn.num_sampled)  # none where there was no room
        for name, count in counts.items():
            model.note(name, count)
        return None

    async def _results(self, text: str, counts: Counter[str]) -> list[dict[str, str]]:
        """Results of the calls of a response, which are counted."""
        assert self._reader, "it was found before"
        try:
            calls = self._reader(text, self._schemas).calls
        except IllFormedError as error:
            counts["ill_formed_calls"] += 1
            return [{"role": "tool", "content": f"error: {error}"}]
        counts["calls"] += len(calls)
        return [
            {"role": "tool", "tool_call_id": f"call_{number}", "name": call.name, "content": await self._call(call)}
            for number, call in enumerate(calls)
        ]

    async def _call(self, call: Call) -> str:
        """The result of one call as text; what goes wrong is told to the model."""
        function, limit = self._functions.get(call.name), self._options.timeout_s
        if function is None:
            return f"error: there is no tool '{call.name}'"
        try:
            inspect.signature(function).bind(**call.arguments)
            async with self._pool.worker() as worker:
                await worker.ready()
                text = await worker.ask((call.name, call.arguments), str, limit)
        except TypeError as error:
            text = f"error: {failure(error)}"
        except TimeoutError:
            return f"error: it did not return within {limit:g} s"
        except FaultError as error:
            text = f"error: {self._pool.explained(str(error))}"
        return text[: self._options.max_result_chars] or "(nothing)"

    def _prepare(self, model: Responder) -> CallReader:
        from transformers.utils import get_json_schema

        self._schemas = [get_json_schema(function) for function in self._functions.values()]
        if not self._pool.has_started:
            self._pool.start()
        return reader_for(model, self._options.parser)

    def close(self) -> None:
        self._pool.close()


class Function:
    """A function of the user's own as a program."""

    def __init__(self, options: FunctionOptions) -> None:
        self._run = named(options.path)

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        verdict: Verdict | None = await self._run(task, model)
        return verdict
