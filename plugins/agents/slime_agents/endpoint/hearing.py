"""Responses, with their special tokens, taken apart into thinking, words and calls; and where strings stop one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from slime.contracts import Responder
from slime_agents.conversations.spelled import whole
from slime_agents.conversations.thinking import parted
from slime_agents.endpoint import values
from slime_agents.endpoint.said import END_THINK, THINK, Call, Said
from slime_agents.tools.calls import CallReader, IllFormedError, import_parsers, read_name_json, reader_for

_PROBE = [{"role": "user", "content": "probe."}]


class Heard(NamedTuple):
    """A response; one is ill formed where a call begins that cannot be read, and stands in the words."""

    said: Said
    is_ill_formed: bool


class Hearing:
    """Reads what a run's model says; `parser` as `EndpointOptions.parser`."""

    def __init__(self, parser: str | None) -> None:
        self._parser = parser
        self._reader: CallReader | None = None
        self._opens_thinking: bool | None = None
        self._has_parsers = False
        self._lock: asyncio.Lock | None = None

    @property
    def opens_thinking(self) -> bool:
        """The chat template opens the model's thinking. Known once there was an answer."""
        return bool(self._opens_thinking)

    @property
    def writes_calls(self) -> bool:
        """The chat template has a place for calls. Known once there were any."""
        return self._reader is not read_name_json

    async def import_parsers(self, model: Responder) -> None:
        """What a first request with tools would wait for longer than some clients do."""
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            if not self._has_parsers:
                await asyncio.to_thread(import_parsers, model, self._parser)
                self._has_parsers = True

    async def prepare(self, model: Responder, has_tools: bool) -> None:
        """Learn how the model writes."""
        if self._opens_thinking is None:
            prompt = model.rendered(_PROBE, prompt=True).removeprefix(model.rendered(_PROBE))
            self._opens_thinking = prompt.rstrip().endswith(THINK)
        if has_tools and self._reader is None:  # in a thread, because there are many parsers to try
            self._lock = self._lock or asyncio.Lock()
            async with self._lock:
                self._reader = self._reader or await asyncio.to_thread(reader_for, model, self._parser)

    def read(self, text: str, tools: Sequence[Mapping[str, Any]], call_id: Callable[[], str]) -> Heard:
        """Take a response apart; `call_id` makes an id for a call of one of `tools`."""
        reasoning, end, words = parted(text)
        if not end and (self._opens_thinking or text.lstrip().startswith(THINK)):
            reasoning, words = text.strip().removeprefix(THINK).strip(), ""
        if tools:
            assert self._reader, "it was prepared"
            try:
                read = self._reader(words, tools)
                if not all(values.is_shallow(call.arguments) for call in read.calls):
                    raise IllFormedError(f"arguments are nested more than {values.MAX_DEPTH} deep")
            except (IllFormedError, ValueError, RecursionError):
                return Heard(Said("assistant", words.strip(), (), reasoning), is_ill_formed=True)
            calls = tuple(Call(call_id(), call.name, whole(call.arguments)) for call in read.calls)
            return Heard(Said("assistant", read.text.strip(), calls, reasoning), is_ill_formed=False)
        return Heard(Said("assistant", words.strip(), (), reasoning), is_ill_formed=False)


@dataclass(frozen=True)
class Stops:
    """The strings; `opens_thinking`: the prompt opens the thinking, so that every answer begins within."""

    strings: tuple[str, ...]
    opens_thinking: bool

    def __call__(self, text: str) -> bool:
        return self.first(text) is not None

    def first(self, text: str) -> tuple[int, str] | None:
        """Place and text of the first stop string. The white space behind thinking belongs to no answer."""
        begin = 0
        opened = text.lstrip()
        if self.opens_thinking or opened.startswith(THINK) or THINK.startswith(opened):
            end = text.find(END_THINK)
            if end < 0:
                return None
            behind = end + len(END_THINK)
            begin = len(text) - len(text[behind:].lstrip())
        found = [(place, each) for each in self.strings if (place := text.find(each, begin)) >= 0]
        return min(found, default=None)
