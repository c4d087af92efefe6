"""The program `endpoint`: an agent program for each attempt, a process or a function."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from guarded_workers import processes
from guarded_workers.environment import split
from slime.contracts import Responder
from slime.errors import SlimeError, nearest
from slime.sampling.held import GRACE_S, held
from slime.types import Task, Verdict
from slime_agents.endpoint import keeper, values
from slime_agents.endpoint.attempt import Attempt
from slime_agents.endpoint.hearing import Hearing
from slime_agents.endpoint.options import EndpointOptions, check
from slime_agents.endpoint.server import MODEL, EndpointServer
from slime_agents.tools.named import named

MAX_PROMPT_BYTES = 100_000
"""Limit of SLIME_PROMPT: the kernel allows no variable of more than 128 KiB."""
_TAIL = 8000
"""Characters of the output by which a failure is told: libraries print the model's answer with it."""
_CHUNK = 1 << 16
_KEY = "rollout.program.options.environment"
_LIBRARIES = str(Path(processes.__file__).parents[1])
_SIGNALS = {number.value: number.name for number in signal.Signals}


class AgentError(Exception):
    """The agent's process ended with a fault; `output` is the end of what it printed."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.output = output


class KilledAgentError(AgentError):
    """It ended by a signal, or because it took too much."""


class Surroundings:
    """The environment of agents' processes, less what may be somebody's keys, but with the `wanted` variables.

    Raises:
        SlimeError: one of these is not set.
    """

    def __init__(self, wanted: Collection[str]) -> None:
        for name in wanted:
            if name not in os.environ:
                near = nearest(name, os.environ)
                meant = f" Did you mean '{near}'?" if near else ""
                todo = f"Set it before slime starts, or take it out.{meant}"
                raise SlimeError(f"the variable {name} is not set", where=_KEY, todo=todo)
        self._passed, self._withheld = split(os.environ, wanted)
        if self._withheld:
            log.warning("Withheld from the agents' environment: %s (%s)", ", ".join(self._withheld), _KEY)

    def of(self, url: str, key: str, task: Task) -> Mapping[str, str]:
        return {**self._passed, **own_variables(url, key, task)}

    def explained(self, reason: str) -> str:
        """`reason`, with the way out if it seems to be a variable that is missing."""
        for name in self._withheld:
            if name in reason:
                return f"{reason} ({name} is withheld from agents unless {_KEY} lists it)"
        return reason


async def run_command(command: str, memory_mb: int, surroundings: Surroundings, url: str, key: str, task: Task) -> None:
    """Run a command to its end; all that it started ends with it, and with a cancellation.

    Raises:
        AgentError: its exit code is not 0.
    """
    ours, lifeline = os.pipe()
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", keeper.__file__, _LIBRARIES, str(ours), str(memory_mb), command,
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            pass_fds=[ours], env=surroundings.of(url, key, task), start_new_session=True,
        )  # fmt: skip
    except BaseException:
        os.close(lifeline)
        raise
    finally:
        os.close(ours)
    end = asyncio.create_task(_end(process, told(task)))
    try:
        tail, code = await asyncio.shield(end)
    finally:
        os.close(lifeline)
        # Because what lasts longer than the event loop complains when it ends. Killed processes end at once.
        await asyncio.wait({end}, timeout=GRACE_S)
    if code:
        how, kind = f"ended with exit code {code}", AgentError
        if code > 128 and (name := _SIGNALS.get(code - 128)):
            how, kind = f"was killed by {name}", KilledAgentError
        elif code == keeper.OUT_OF_BOUNDS:
            how, kind = "was killed", KilledAgentError
        last = tail.strip().rpartition("\n")[2]
        raise kind(surroundings.explained(f"the agent {how}: {last}" if last else f"the agent {how}"), tail)


async def _end(process: asyncio.subprocess.Process, task: bytes) -> tuple[str, int]:
    """The end of a process's output, and its exit code, once all that holds its output has ended."""
    assert process.stdin, "it is a pipe"
    assert process.stdout, "it is a pipe"
    process.stdin.write(task)
    with suppress(ConnectionError):
        process.stdin.close()
    tail = b""
    while data := await process.stdout.read(_CHUNK):
        tail = (tail + data)[-_TAIL:]
    return tail.decode(errors="replace"), await process.wait()


def told(task: Task) -> bytes:
    """A task as a line of JSON. It has no label: an agent could hand it to the model."""
    prompt = task.prompt
    said: dict[str, Any] = {"messages": list(prompt.messages), "metadata": dict(prompt.metadata)}
    said |= {"prompt_id": prompt.id, "attempt": task.attempt, "seed": task.seed, "is_evaluation": task.is_evaluation}
    return values.dumps(said, default=str) + b"\n"


def own_variables(url: str, key: str, task: Task) -> Mapping[str, str]:
    """Variables of an attempt: the endpoint under every name that clients look for, and no proxy before it."""
    own = {
        **dict.fromkeys(("OPENAI_BASE_URL", "OPENAI_API_BASE"), f"{url}/v1"),
        **dict.fromkeys(("ANTHROPIC_BASE_URL", "ANTHROPIC_API_BASE"), url),
        **dict.fromkeys(("OPENAI_API_KEY", "ANTHROPIC_API_KEY"), key),
        **dict.fromkeys(("OPENAI_MODEL", "OPENAI_DEFAULT_MODEL", "ANTHROPIC_MODEL"), MODEL),
        "SLIME_SEED": str(task.seed),
        "SLIME_VERDICT_URL": f"{url}/verdict",
    }
    prompt = str(task.prompt.messages[-1].get("content", "")) if task.prompt.messages else ""
    if len(prompt.encode()) <= MAX_PROMPT_BYTES and "\0" not in prompt:
        own["SLIME_PROMPT"] = prompt
    host = url.partition("://")[2].partition("/")[0].rpartition(":")[0]
    for name in ("no_proxy", "NO_PROXY"):
        own[name] = ",".join(filter(None, (os.environ.get(name), host)))
    return own


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """The second argument of a function of the user's own.

    Attributes:
        url: for OpenAI's clients, as `base_url`.
        anthropic_url: for Anthropic's.
        key: of this attempt, as `api_key`.
    """

    url: str
    anthropic_url: str
    key: str


class EndpointProgram:
    """Each attempt is an agent program that asks an endpoint of its own."""

    in_driver = True  # because all attempts share one server

    def __init__(self, options: EndpointOptions) -> None:
        check(options)
        self._options = options
        self._surroundings = Surroundings(options.environment) if options.command else None
        self._function = named(options.path) if options.path else None
        self._hearing = Hearing(options.parser)
        self._server = EndpointServer(options.host, self._hearing, options.structured)

    async def run(self, task: Task, model: Responder) -> Verdict | None:
        await self._hearing.import_parsers(model)
        async with self._server.attempt(model) as (attempt, url):
            agent = asyncio.create_task(self._agent(task, attempt, url))
            try:
                ends: set[asyncio.Future[Any]] = {agent, attempt.broken}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await _ended(agent)
            if attempt.broken.done():
                attempt.broken.result()  # raises what ended the last turn
            try:
                verdict = agent.result()
            except KilledAgentError:
                raise
            except Exception as error:
                if not attempt.is_broken_by_form(error):
                    raise
                log.debug("An attempt gets a reward, because an answer missed its form: its agent failed by %r", error)
                return attempt.verdict or Verdict.of(0.0)
            return attempt.verdict if verdict is None else verdict

    async def _agent(self, task: Task, attempt: Attempt, url: str) -> Verdict | None:
        if self._function:
            verdict: Verdict | None = await held(self._function(task, Endpoint(f"{url}/v1", url, attempt.key)))
            return verdict
        assert self._surroundings, "there is a command"
        await run_command(self._options.command, self._options.memory_mb, self._surroundings, url, attempt.key, task)
        return None


async def _ended(agent: asyncio.Task[Verdict | None]) -> None:
    """End an agent if it goes on; one that does not mind is closed after a grace."""
    for _ in range(2):
        if agent.done():
            return
        agent.cancel()
        await asyncio.wait({agent}, timeout=GRACE_S)
