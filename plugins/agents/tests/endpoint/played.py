"""Attempts through the endpoint, over HTTP, with a model that says what it is told to."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from plugins.agents.tests.conversations.formats import FORMATS, tokenizer_of
from slime.config.schema import DataConfig, SamplingConfig
from slime.engine_client.client import Completion, FinishReason
from slime.engine_client.engine_set import EngineSet
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Generator
from slime.types import Prompt, Sample
from slime_agents.conversations.conversation import Conversations
from slime_agents.endpoint.options import EndpointOptions
from slime_agents.endpoint.program import Endpoint, EndpointProgram

MESSAGES = ({"role": "user", "content": "What is 27*58?"},)
END = "<|im_end|>"
LIMIT, PROMPT_LIMIT = 20_000, 20_000
Agent = Callable[[Any, Endpoint], Awaitable[Any]]
AGENTS: dict[str, Agent] = {}


def counting(text: str = "answer") -> Callable[[str], str]:
    """Says something else each time."""
    numbers = itertools.count()
    return lambda before: f"{text} {next(numbers)}{END}"


class Says:
    """An engine that answers by a function of the text that it is given, after `delay_s`, and once `over` is set."""

    url, num_generating = "the model of these tests", 1

    def __init__(
        self, tokenizer, say: Callable[[str], Any], delay_s: float = 0.0, over: asyncio.Event | None = None
    ) -> None:
        self._tokenizer, self._say, self._delay_s, self._over = tokenizer, say, delay_s, over
        self.requests: list[list[int]] = []

    async def generate(self, input_ids, sampling, /) -> Completion:
        self.requests.append(list(input_ids))
        text = self._say(self._tokenizer.decode(input_ids))
        if self._delay_s:
            await asyncio.sleep(self._delay_s)
        if self._over:
            await self._over.wait()
        if isinstance(text, BaseException):
            raise text
        tokens = self._tokenizer.encode(text, add_special_tokens=False)
        reason = FinishReason.STOP
        if len(tokens) > sampling["max_new_tokens"]:
            tokens, reason = tokens[: sampling["max_new_tokens"]], FinishReason.LENGTH
        return Completion(tokens, [-0.5] * len(tokens), reason, 1, 0, 0)

    async def abort_all(self) -> None: ...


class Stage:
    """Where attempts are made in a chat format.

    Args:
        folder: for the tokenizer.
        say: what the model answers, end token and all, to the text before it.
        engine: of `Says`.
    """

    def __init__(self, folder: Path, say: Callable[[str], Any], name: str = "qwen3", **engine: Any) -> None:
        self.form = FORMATS[name]
        self.tokenizer = tokenizer_of(self.form, str(folder))
        ids = self.tokenizer.convert_tokens_to_ids(list(self.form.ends))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        self.chat = Conversations(self.tokenizer, DataConfig(path=""), PROMPT_LIMIT)
        self.engine = Says(self.tokenizer, say, **engine)

    async def make(self, program: EndpointProgram, timeout_s: float = 240.0, **metadata: Any) -> Sample:
        prompt = Prompt("0/0", MESSAGES, tuple(self.chat.first(MESSAGES, ())), "1566", metadata)
        sampling = SamplingConfig(max_response_tokens=LIMIT)
        generator = Generator(EngineSet([self.engine]), sampling, self.tokenizer)
        sample = Sample(prompt, 0)
        attempts = Attempts(program, generator, 5, 1, chat=self.chat, max_requests=8,
                            timeout_s=timeout_s)  # fmt: skip
        assert await attempts.run(sample)
        return sample

    def play(self, agent: Agent, **options: Any) -> Sample:
        """An attempt of a function."""
        return asyncio.run(self.make(program_of(agent, **options)))

    def check(self, sample: Sample) -> None:
        """Every request is a beginning of what is trained on, or of what was taken back, and nothing twice."""
        wholes = [[*segment.context, *segment.tokens] for segment in sample.segments]
        for segment in sample.segments:
            segment.check()
            assert any(segment.loss_mask), "a segment has something to learn from"
        for request in self.engine.requests:
            assert any(whole[: len(request)] == request for whole in wholes)

    def texts(self, sample: Sample) -> list[str]:
        return [self.tokenizer.decode([*segment.context, *segment.tokens]) for segment in sample.segments]

    def trained(self, sample: Sample) -> list[str]:
        """What the segments train on."""
        return [
            self.tokenizer.decode(
                [token for token, mask in zip(segment.tokens, segment.loss_mask, strict=True) if mask]
            )
            for segment in sample.segments
        ]


def program_of(agent: Agent, **options: Any) -> EndpointProgram:
    """Whose attempts are a function; the last one that was made can be run."""
    AGENTS["now"] = agent
    return EndpointProgram(EndpointOptions(path=f"{__name__}:now", **options))


async def now(task: Any, endpoint: Endpoint) -> Any:
    return await AGENTS["now"](task, endpoint)
