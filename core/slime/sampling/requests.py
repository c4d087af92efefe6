"""What the attempts of a pipeline have in common: who answers them, how many ask at once, and what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from slime.conversation import Chat
from slime.sampling.generate import Generator


class Requests:
    """What an attempt asks the engines through, and what all attempts share.

    Args:
        generator: asks the engines.
        seed: of the run.
        version: the weight version that every engine holds.
        max_requests: at the engines at once.
        chat: turns conversations of several turns into tokens; None: there are none.

    Attributes:
        num_tokens: generated so far.
        num_drafted, num_accepted: tokens proposed by drafting models so far, and those of them that were taken.
        num_asking: attempts that wait for the engines, or for their turn there.
        num_away: attempts in the midst of a conversation that ask for nothing now: a tool runs, for instance.
        when_away: called when one more of them is away, so that another one may begin.
        are_suspended: the engines are told to abort; no further response is begun.
    """

    def __init__(
        self, generator: Generator, seed: int, version: int, *, max_requests: int = 1, chat: Chat | None = None
    ) -> None:
        self.generator, self.seed, self.version, self.chat = generator, seed, version, chat
        self.slots = asyncio.Semaphore(max_requests)
        self.num_tokens = self.num_drafted = self.num_accepted = self.num_asking = self.num_away = 0
        self.are_suspended = False
        self.when_away: Callable[[], None] = lambda: None
