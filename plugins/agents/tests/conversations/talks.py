"""Conversations at random, by a chat format: model and program say anything; and what holds of their tokens."""

from __future__ import annotations

import random
from functools import cache, partial
from itertools import compress
from typing import Any

from slime.config.schema import SamplingConfig
from slime.engine_client.client import Completion, FinishReason
from slime.engine_client.engine_set import EngineSet
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Generator
from slime.types import Prompt, Sample, Status
from slime_agents.conversations.conversation import Conversations

from .formats import Format

LIMIT, PROMPT_LIMIT = 4000, 2000
TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
WORDS = ("yes", "it is 12.5", 'a "b" \\c', "</think>", "<tool_call>", "{}", "\n\n", " ")


class RandomModel:
    """An engine in this process that says anything: thinking, calls, control words, and ends as it likes.

    Attributes:
        requests: since somebody last took them away.
    """

    url, num_generating = "the model of these tests", 1

    def __init__(self, form: Format, tokenizer, rng: random.Random) -> None:
        self._form, self._tokenizer, self._rng = form, tokenizer, rng
        self._encoded = cache(partial(tokenizer.encode, add_special_tokens=False))  # it says much twice
        self.requests: list[list[int]] = []

    async def generate(self, input_ids, sampling, /) -> Completion:
        self.requests.append(list(input_ids))
        rng, form = self._rng, self._form
        text = "".join(rng.choices(WORDS, k=rng.randint(0, 4)))
        if rng.random() < 0.5:
            text = f"<think>\nwhy {text}</think>\n\n{text}"
        text += form.call * rng.choice((0, 0, 1, 2))
        tokens, reason = list(self._encoded(text)), FinishReason.STOP
        if rng.random() < 0.2:
            tokens, reason = tokens[: rng.randint(1, 9)] or [form_token(self._tokenizer, "n")], FinishReason.LENGTH
        else:
            tokens.append(form_token(self._tokenizer, rng.choice(form.ends)))
        tokens = tokens[: sampling["max_new_tokens"]]
        return Completion(tokens, [-float(len(self.requests))] * len(tokens), reason, 1, 0, 0)

    async def abort_all(self) -> None: ...


def form_token(tokenizer, word: str) -> int:
    return tokenizer.convert_tokens_to_ids(word)


class RandomProgram:
    """Says users' and tools' messages in any order that the template has words for."""

    def __init__(self, form: Format, rng: random.Random) -> None:
        self._form, self._rng = form, rng

    async def run(self, task, model) -> None:
        rng, has_tools = self._rng, self._form.has_tools
        conversation = model.conversation(tools=TOOLS if has_tools and rng.random() < 0.7 else ())
        await conversation.turn()
        for _ in range(rng.randint(1, 4)):
            new = []
            if has_tools and rng.random() < 0.7:
                new = [self._said("tool", tool_call_id=f"c{n}", name="add") for n in range(rng.randint(1, 3))]
            if not new or rng.random() < 0.3:
                new.append(self._said("user"))
            await conversation.turn(*new, max_tokens=rng.choice((None, 5, 40)))

    def _said(self, role: str, **more: str) -> dict[str, str]:
        words = [*WORDS[:4], *self._form.special]
        return {"role": role, "content": "x" + "".join(self._rng.choices(words, k=self._rng.randint(0, 3))), **more}


class Stage:
    """Where attempts are made, one after another."""

    def __init__(self, form: Format, tokenizer, chat: Conversations, rng: random.Random) -> None:
        self._chat, self._engine = chat, RandomModel(form, tokenizer, rng)
        self._generator = Generator(EngineSet([self._engine]), SamplingConfig(max_response_tokens=LIMIT), tokenizer)

    async def play(self, program) -> tuple[Sample, list[list[int]]]:
        """The sample, and what the engine was asked."""
        messages = ({"role": "user", "content": "add 1 and 2"},)
        sample = Sample(Prompt("0/0", messages, tuple(self._chat.first(messages, ()))), 0)
        self._engine.requests = []
        assert await Attempts(program, self._generator, 5, 1, chat=self._chat).run(sample)
        return sample, self._engine.requests


def remembered(render, encode):
    """The same text for the same messages, and the same tokens for the same text: templates and tokenizers have no
    state, and ten thousand conversations say much twice."""
    known: dict[str, Any] = {}

    def rendered(tokenizer, messages, where, keywords, *, prompt):
        key = repr((messages, keywords, prompt))
        if key not in known:
            known[key] = render(tokenizer, messages, where, keywords, prompt=prompt)
        return known[key]

    def encoded(tokenizer, texts):
        for text in texts:
            if text not in known:
                [known[text]] = encode(tokenizer, [text])
            yield known[text]

    return rendered, encoded


async def talk(form: Format, tokenizer, chat: Conversations, count: int) -> tuple[int, int]:
    """How many turns `count` conversations had, and how many of their control tokens have a loss.

    Raises:
        AssertionError: a request is no beginning of the segment that is trained on in the end, a token that was sampled
            has no loss, or one that was not has.
    """
    rng, controls = random.Random(3), {form_token(tokenizer, word) for word in form.special}
    stage, program = Stage(form, tokenizer, chat, rng), RandomProgram(form, rng)
    num_turns = num_ends = 0
    for _ in range(count):
        sample, requests = await stage.play(program)
        assert sample.status is not Status.FAILED, sample.verdict
        [segment] = sample.segments
        segment.check()
        whole = [*segment.context, *segment.tokens]
        assert all(request == whole[: len(request)] for request in requests)
        assert requests == sorted(requests, key=len)
        mask = [0] * len(segment.context) + segment.loss_mask
        for begin in map(len, requests):
            assert mask[begin - 1 : begin + 1] == [0, 1], "a response begins behind what was written"
        num_turns += len(requests)
        num_ends += sum(map(controls.__contains__, compress(whole, mask)))
        said = "".join(message["content"] for message in sample.turns if message["role"] != "assistant")
        assert said or len(requests) == 1
    return num_turns, num_ends
