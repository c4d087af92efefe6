"""Token ids that the model has not: no engine is asked with them, and only the attempt that made them is lost."""

from __future__ import annotations

import asyncio
import copy
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from slime.config.schema import DataConfig, SamplingConfig
from slime.conversation import RefusedError
from slime.data.tokenize import load_tokenizer
from slime.engine_client.client import Completion, FinishReason
from slime.engine_client.engine_set import EngineSet
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Generator
from slime.types import Prompt, Sample, Status
from slime_agents.conversations.conversation import Conversations

MESSAGES = ({"role": "user", "content": "1+2="},)


class Engine:
    """Says one token, and keeps what it was asked."""

    url, num_generating = "the engine of these tests", 1

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    async def generate(self, input_ids: Any, sampling: Any, /, **_: Any) -> Completion:
        self.asked.append(list(input_ids))
        return Completion([7], [-0.5], FinishReason.LENGTH, 1, 0, 0)

    async def abort_all(self) -> None: ...


def attempt(program: Any, tokenizer: Any, vocab_size: int = 128) -> tuple[Sample, list[list[int]]]:
    chat, engine = Conversations(tokenizer, DataConfig(path=""), 100), Engine()
    generator = Generator(EngineSet([engine]), SamplingConfig(max_response_tokens=50), tokenizer, vocab_size=vocab_size)
    sample = Sample(Prompt("0/0", MESSAGES, tuple(chat.first(MESSAGES, ())), "3"), 0)
    assert asyncio.run(Attempts(program, generator, 5, 1, chat=chat).run(sample))
    return sample, engine.asked


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(Path(str(files("slime_plugin_glm4") / "assets" / "glm4-tiny")))


@pytest.mark.parametrize("odd", [128, 151_936, -1, None])
def test_ids_of_a_programs_own(odd: int | None, tokenizer: Any) -> None:
    class Own:
        in_driver = True

        async def run(self, task: Any, model: Any) -> None:
            segment, seed = model.begin((*task.prompt.tokens, 127 if odd is None else odd))
            await model.extend(segment, 0, 20, seed)

    sample, asked = attempt(Own(), tokenizer)
    if odd is None:
        assert sample.status is not Status.FAILED
        assert len(asked) == 1
        return
    assert not asked
    assert sample.status is Status.FAILED
    assert sample.verdict is not None
    assert f"the model has no token {odd}: its ids end at 127" in str(sample.verdict)


def test_words_that_become_one_are_refused_and_the_conversation_goes_on(tokenizer: Any) -> None:
    more = copy.deepcopy(tokenizer)
    more.add_tokens(["<extra>"])
    last = more.convert_tokens_to_ids("<extra>")

    class Talks:
        in_driver = True

        async def run(self, task: Any, model: Any) -> None:
            talk = model.conversation()
            await talk.turn()
            before = list(model.sample.segments[0].tokens)
            with pytest.raises(RefusedError, match=f"the model has no token {last}: its ids end at {last - 1}"):
                await talk.turn({"role": "user", "content": "<extra>"})
            assert model.sample.segments[0].tokens == before, "nothing was said"
            await talk.turn({"role": "user", "content": "0"})
            with pytest.raises(RefusedError):
                await model.conversation([{"role": "user", "content": "<extra>"}]).turn()

    sample, asked = attempt(Talks(), more, last)
    assert len(asked) == 2
    assert sample.status is not Status.FAILED, sample.verdict
