"""Attempts of a program with written answers, by a chat format."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from plugins.agents.tests.conversations.formats import FORMATS, tokenizer_of
from slime.config.schema import DataConfig, SamplingConfig
from slime.engine_client.client import Completion, FinishReason
from slime.engine_client.engine_set import EngineSet
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Generator
from slime.types import Prompt, Sample
from slime_agents.conversations.conversation import Conversations

MESSAGES = ({"role": "user", "content": "27*58="},)


class Says:
    """An engine that gives one written answer after the other."""

    url, num_generating = "the model of these tests", 1

    def __init__(self, tokenizer, *answers: str) -> None:
        self._tokenizer, self._answers = tokenizer, list(answers)

    async def generate(self, input_ids, sampling, /) -> Completion:
        tokens = self._tokenizer.encode(self._answers.pop(0), add_special_tokens=False)
        return Completion(tokens, [-0.5] * len(tokens), FinishReason.STOP, 1, 0, 0)

    async def abort_all(self) -> None: ...


class Played:
    """A program's attempt with written answers, by a chat format."""

    def __init__(self, folder: Path, name: str = "glm-4") -> None:
        self.form = FORMATS[name]
        self.tokenizer = tokenizer_of(self.form, str(folder))
        ids = self.tokenizer.convert_tokens_to_ids(list(self.form.ends))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
        self.chat = Conversations(self.tokenizer, DataConfig(path=""), 1000)

    def __call__(self, program, *answers: str, label="1566") -> Sample:
        prompt = Prompt("0/0", MESSAGES, tuple(self.chat.first(MESSAGES, ())), label)
        sampling = SamplingConfig(max_response_tokens=1000)
        generator = Generator(EngineSet([Says(self.tokenizer, *answers)]), sampling, self.tokenizer)
        sample = Sample(prompt, 0)
        assert asyncio.run(Attempts(program, generator, 5, 1, chat=self.chat).run(sample))
        return sample

    def rendered(self, messages, tools=()):
        return self.chat.render(messages, tools)
