"""Attempts in a program's worker, one after the other, which talk to the model through the driver."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

from guarded_workers.wire import FaultError
from guarded_workers.worker import Line, describe
from slime import plugins
from slime.contracts import Program
from slime.conversation import Stop
from slime.reward.verdicts import checked, fields
from slime.sampling.held import Suspended
from slime.time_limit import FAILURES
from slime.types import Message, Task, Turn, Verdict


class Runner:
    """A `guarded_workers.worker.Servant` of a program. Its answers are `{"ended": ..., "verdict": ...}`."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self._program: Program = plugins.load().programs.get(name).factory(**options)

    def answer(self, message: Task, line: Line) -> dict[str, Any]:
        try:
            verdict = asyncio.run(RemoteModel(line).attempt(self._program, message))
        except Suspended:
            return {"ended": "suspended", "verdict": None}
        except asyncio.CancelledError:
            return {"ended": "cancelled", "verdict": None}
        if verdict is not None and not isinstance(verdict, Verdict):
            raise FaultError(f"the program gave {verdict!r:.80}, not a Verdict or None")
        return {"ended": "returned", "verdict": verdict and fields(checked(verdict, "the program"))}


class RemoteModel:
    """A `slime.contracts.Responder` whose other end is in the driver."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._task: asyncio.Task[Any] | None = None
        self._waiting: dict[int, asyncio.Future[tuple[str, Any]]] = {}

    async def attempt(self, program: Program, task: Task) -> Any:
        """The verdict that the program returns. Raises FaultError: it raised."""
        loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        loop.add_reader(self._line.fileno(), self._read)
        try:
            return await program.run(task, self)
        except (MemoryError, FaultError):
            raise
        except FAILURES as error:
            traceback.print_exc()
            raise FaultError(f"the program raised {describe(error)}") from error
        finally:
            loop.remove_reader(self._line.fileno())

    async def respond(self) -> Turn:
        turn: Turn = await self.ask(None, "respond")
        return turn

    def conversation(self, messages: Sequence[Message] | None = None, tools: Sequence[Any] = ()) -> RemoteConversation:
        return RemoteConversation(self, self.ask_now(None, "conversation", messages, tools))

    def rendered(self, messages: Sequence[Message], tools: Sequence[Any] = (), *, prompt: bool = False) -> str:
        text: str = self.ask_now(None, "rendered", messages, tools, prompt=prompt)
        return text

    def note(self, name: str, value: float) -> None:
        self.ask_now(None, "note", name, float(value))

    async def ask(self, conversation: int | None, method: str, *arguments: Any, **options: Any) -> Any:
        """The result of a method of the model, or of one of its conversations, in the driver."""
        question = self._line.ask([conversation, method, arguments, options])
        reply = self._waiting[question] = asyncio.get_running_loop().create_future()
        try:
            return _opened(await reply)
        finally:
            del self._waiting[question]

    def ask_now(self, conversation: int | None, method: str, *arguments: Any, **options: Any) -> Any:
        """Do as `ask`, with a method that is no coroutine."""
        question = self._line.ask([conversation, method, arguments, options])
        reply = None
        while reply is None:
            for message in self._line.receive():
                if message is not None and message[0] == question:
                    reply = message[1]
                else:
                    self._take(message)
        if self._line.has_received:
            self._read()
        return _opened(reply)

    def _read(self) -> None:
        is_first = True
        while is_first or self._line.has_received:  # nothing else tells of what came with the first
            is_first = False
            for message in self._line.receive():
                self._take(message)

    def _take(self, message: tuple[int, tuple[str, Any]] | None) -> None:
        """A reply; None cancels the attempt."""
        if message is None:
            assert self._task, "an attempt runs in a task"
            self._task.cancel()
        elif (reply := self._waiting.get(message[0])) and not reply.done():
            reply.set_result(message[1])


class RemoteConversation:
    """A `slime.contracts.Conversation` whose other end is in the driver, under a number."""

    def __init__(self, model: RemoteModel, number: int) -> None:
        self._model, self._number = model, number

    async def turn(self, *new: Message, max_tokens: int | None = None, stop: Stop = ()) -> Turn:
        if callable(stop):
            raise TypeError("a function cannot stop a response from here: name strings")
        turn: Turn = await self._model.ask(self._number, "turn", *new, max_tokens=max_tokens, stop=list(stop))
        return turn

    async def count(self, *new: Message) -> int:
        count: int = await self._model.ask(self._number, "count", *new)
        return count

    def branch(self, num_turns: int) -> RemoteConversation:
        return RemoteConversation(self._model, self._model.ask_now(self._number, "branch", num_turns))

    def take_back(self) -> None:
        self._model.ask_now(self._number, "take_back")


def _opened(reply: tuple[str, Any]) -> Any:
    how, value = reply
    if how == "suspended":
        raise Suspended
    if how == "raised":
        raise value
    return value
