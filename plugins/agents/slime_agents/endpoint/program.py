"""The program `endpoint`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from slime.contracts import Responder
from slime.sampling.held import GRACE_S, held
from slime.types import Task, Verdict
from slime_agents.endpoint.agent import KilledAgentError, Surroundings, run_command
from slime_agents.endpoint.attempt import Attempt
from slime_agents.endpoint.hearing import Hearing
from slime_agents.endpoint.options import EndpointOptions, check
from slime_agents.endpoint.server import EndpointServer
from slime_agents.tools.named import named

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
