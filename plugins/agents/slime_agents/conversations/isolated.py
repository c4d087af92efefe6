"""A program in worker processes, an attempt each, so that a process lost costs that attempt alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from inspect import isawaitable
from pathlib import Path
from typing import Any

from guarded_workers.wire import FaultError
from slime import plugins
from slime.config.rollout import ProgramConfig
from slime.contracts import Program, Responder
from slime.conversation import Conversation
from slime.reward.verdicts import verdict
from slime.sampling.attempts import Model
from slime.sampling.held import Suspended
from slime.types import Task, Verdict
from slime.workers import WorkerPool, pool_of
from slime_agents.conversations.conversation import Conversations

_OF_MODEL = ("respond", "conversation", "rendered", "note")
_OF_CONVERSATION = ("turn", "count", "branch", "take_back")


@contextmanager
def isolated(program: ProgramConfig, log: Path | None, hidden: Sequence[Path]) -> Iterator[Program]:
    """The program that is named, in worker processes: see `slime.sampling.programs.ProgramKit`."""
    chosen, servant = plugins.load().programs.get(program.name), "slime_agents.conversations.in_worker:Runner"
    pool = pool_of(chosen, program, "rollout.program", servant, first=1, log=log, hidden=hidden)
    pool.start()
    try:
        yield Isolated(pool)
    finally:
        pool.close()


class Isolated:
    """A `slime.contracts.Program` of which each attempt occupies a worker, which runs `in_worker.Runner`."""

    in_driver = True

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        """Raises (beside what `Responder` raises):

        FaultError: the program raised, or its process died.
        LostWorkerError: the worker is gone through no fault of the program that can be seen.
        """
        assert isinstance(model, Model), "the sampler's own"
        conversations: list[Conversation] = []

        async def serve(question: Any) -> tuple[str, Any]:
            try:
                return "returned", await _served(model, conversations, *question)
            except Suspended:
                return "suspended", None
            except Exception as error:  # noqa: BLE001 because whatever the model raises is the program's to handle
                return "raised", error

        try:
            async with AsyncExitStack() as stack:
                with model.prepared():
                    worker = await stack.enter_async_context(self._pool.worker())
                    await worker.ready()
                ended, answer = await worker.ask(task, _ended, serve=serve)
        except FaultError as fault:
            raise FaultError(self._pool.explained(str(fault))) from fault
        if ended == "suspended":
            raise Suspended
        if ended == "cancelled":
            raise asyncio.CancelledError
        return answer


async def _served(
    model: Responder, conversations: list[Conversation], number: int | None, method: str, arguments: Any, options: Any
) -> Any:
    """The result of a method of the model, or of one of its conversations; of a conversation, its number."""
    if method not in (_OF_MODEL if number is None else _OF_CONVERSATION):
        raise AttributeError(f"there is no method {method!r:.80}")
    result = getattr(model if number is None else conversations[number], method)(*arguments, **options)
    if isawaitable(result):
        return await result
    if method in ("conversation", "branch"):
        conversations.append(result)
        return len(conversations) - 1
    return result


def _ended(answer: Any) -> tuple[str, Verdict | None]:
    how, given = answer["ended"], answer["verdict"]
    if how not in ("returned", "suspended", "cancelled"):
        raise ValueError("no such end")
    return how, None if given is None else verdict(**given)


class Kit:
    """A `slime.sampling.programs.ProgramKit`."""

    chat = Conversations
    isolated = staticmethod(isolated)
