"""Conversations of several turns: every request's tokens are a beginning of what is trained on in the end."""

from __future__ import annotations

import asyncio
import json
import random
from functools import cache, partial
from itertools import compress
from typing import Any

import pytest
from slime_plugin_conversations import chat_format
from slime_plugin_conversations.chat_format import ChatFormat

from slime.config.schema import DataConfig, SamplingConfig
from slime.engine_client.client import Completion, FinishReason
from slime.engine_client.engine_set import EngineSet
from slime.errors import SlimeError
from slime.sampling.attempts import Attempts
from slime.sampling.generate import Generator
from slime.time_limit import often
from slime.types import Prompt, Sample, Status, Turn

from .formats import FORMATS, Format, tokenizer_of

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

    def __init__(self, form: Format, tokenizer, chat: ChatFormat, rng: random.Random) -> None:
        self._chat, self._engine = chat, RandomModel(form, tokenizer, rng)
        self._generator = Generator(EngineSet([self._engine]), SamplingConfig(max_response_tokens=LIMIT), tokenizer)

    async def play(self, program) -> tuple[Sample, list[list[int]]]:
        """The sample, and what the engine was asked."""
        messages = ({"role": "user", "content": "add 1 and 2"},)
        sample = Sample(Prompt("0/0", messages, tuple(self._chat.first(messages, ()))), 0)
        self._engine.requests = []
        assert await Attempts(program, self._generator, 5, 1, chat=self._chat).run(sample)
        return sample, self._engine.requests


def played(parts, program, seed=1) -> tuple[Sample, list[list[int]]]:
    return asyncio.run(Stage(*parts, random.Random(seed)).play(program))


@pytest.fixture(params=FORMATS)
def parts(request, tmp_path):
    form = FORMATS[request.param]
    (tmp_path / "generation_config.json").write_text("{}")
    tokenizer = tokenizer_of(form, str(tmp_path))
    ids = [form_token(tokenizer, word) for word in form.ends]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return form, tokenizer, ChatFormat(tokenizer, DataConfig(path=""), PROMPT_LIMIT)


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


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_request_is_a_beginning_of_the_segment(parts, count, monkeypatch):
    """And what the model sampled has a loss, its end token too, what the program wrote has none."""
    form, tokenizer, _ = parts
    rng, controls = random.Random(3), {form_token(tokenizer, word) for word in form.special}
    num_turns = num_ends = 0
    if count > 100:
        render, encode = remembered(chat_format.render, chat_format.encode)
        monkeypatch.setattr(chat_format, "render", render)
        monkeypatch.setattr(chat_format, "encode", encode)
    stage, program = Stage(*parts, rng), RandomProgram(form, rng)

    async def play_all() -> None:
        for _ in range(count):
            check(*await stage.play(program))

    def check(sample: Sample, requests: list[list[int]]) -> None:
        nonlocal num_turns, num_ends
        assert sample.status is not Status.FAILED, sample.verdict
        [segment] = sample.segments
        segment.check()
        whole = [*segment.context, *segment.tokens]
        for request in requests:
            assert request == whole[: len(request)]
        assert requests == sorted(requests, key=len)
        mask = [0] * len(segment.context) + segment.loss_mask
        for request in requests:
            begin = len(request)
            assert mask[begin - 1 : begin + 1] == [0, 1], "a response begins behind what was written"
        num_turns += len(requests)
        num_ends += sum(map(controls.__contains__, compress(whole, mask)))
        said = "".join(message["content"] for message in sample.turns if message["role"] != "assistant")
        assert said or len(requests) == 1

    with often():  # as around every step of a run
        asyncio.run(play_all())
    assert num_turns > 3 * count
    assert num_ends > count, "end tokens keep their loss"


@pytest.mark.parametrize("name", FORMATS)
def test_a_conversation_has_the_tokens_of_the_whole_rendered_at_once(name, parts):
    """Where the template keeps what was said, and the model ended its turn as the template does."""
    form, tokenizer, chat = parts
    if FORMATS[name] is not form:
        return
    plain = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    first = chat.first(plain[:1], ())
    whole = chat.first(plain, ())
    end = form_token(tokenizer, form.ends[0])
    opened = chat.first(plain[:1], ())
    answer = tokenizer.encode("b", add_special_tokens=False)
    if "glm" in name:
        answer = tokenizer.encode("\n<think></think>\nb" if name == "glm-4.5" else "\nb", add_special_tokens=False)
    if name == "deepseek-v3":  # its history never holds the thinking that its own prompt opens
        opened = first = first[: -len(tokenizer.encode("<think>\n", add_special_tokens=False))]
    said = [*opened, *answer, end]
    assert [*said, *chat.behind(said, plain[2:], ())] == whole
    assert first == whole[: len(first)]


@pytest.mark.parametrize("name", ["qwen3", "glm-4.5", "deepseek-v3", "llama-3"])
def test_parallel_results_are_one_block_and_a_template_may_want_arguments_either_way(name, tmp_path):
    form = FORMATS[name]
    chat = ChatFormat(tokenizer_of(form, str(tmp_path)), DataConfig(path=""), PROMPT_LIMIT)
    results = [{"role": "tool", "content": f"result {number}"} for number in range(2)]
    tokenizer = tokenizer_of(form, str(tmp_path))
    text = tokenizer.decode(chat.behind([], results, TOOLS))
    assert text.count("result") == 2
    wanted = {
        "qwen3": "<tool_response>\nresult 0\n</tool_response>\n<tool_response>\nresult 1\n</tool_response><|im_end|>",
        "glm-4.5": "<|observation|>\n<tool_response>\nresult 0\n</tool_response>\n<tool_response>\nresult 1",
        "deepseek-v3": "<|outputs_begin|><|output_begin|>result 0<|output_end|><|output_begin|>result 1<|output_end|>",
        "llama-3": "ipython<|end_header_id|>\n\nresult 1<|eot_id|>",
    }
    assert wanted[name] in text


def test_a_control_token_in_a_tool_s_output_does_not_act(parts):
    form, tokenizer, chat = parts
    role = "tool" if form.has_tools else "user"
    (plain, hostile) = (chat.behind([], [{"role": role, "content": text}], ())
                        for text in ("x", "".join(form.special)))  # fmt: skip
    controls = {form_token(tokenizer, word) for word in form.special}
    assert [token for token in plain if token in controls] == [token for token in hostile if token in controls]


def test_what_a_template_refuses_is_remembered_for_messages_of_that_kind(tmp_path, monkeypatch):
    """The output of one tool has a place in this template; that of others is written under another role."""
    named = "{% for m in messages if m.role != 'tool' or m.name == 'add' %}[{{ m.role }}] {{ m.content }}{% endfor %}"
    chat = ChatFormat(tokenizer_of(FORMATS["glm-4"]._replace(template=named), str(tmp_path)), DataConfig(path=""), 99)
    roles, rendered = [], chat._chat._check_roles
    monkeypatch.setattr(chat._chat, "_check_roles", lambda *a: roles.append([m["role"] for m in a[0]]) or rendered(*a))

    def behind(number: int, **more) -> None:
        chat.behind([], [{"role": "tool", "content": f"{number}", "tool_call_id": f"call_{number}", **more}], ())

    behind(1)
    known = len(roles)
    behind(2)
    assert known == len(roles) > 1, "nothing was tried again"
    behind(3, name="add")
    assert roles[-1] == ["user", "assistant", "tool"], "a message of another kind was"


def test_a_template_that_rewrites_what_was_said_is_refused_and_the_token_is_named(tmp_path):
    form = FORMATS["qwen3"]._replace(template="{{ messages | length }}" + FORMATS["qwen3"].template)
    chat = ChatFormat(tokenizer_of(form, str(tmp_path)), DataConfig(path=""), PROMPT_LIMIT)
    with pytest.raises(SlimeError, match=r"writes token 0 as '3', and not '2', once the role 'tool' follows"):
        chat.behind([], [{"role": "tool", "content": "12"}], ())
    deaf = form._replace(
        template="{% for m in messages if m.role in ['user', 'assistant'] %}{{ m.content }}{% endfor %}"
    )
    chat = ChatFormat(tokenizer_of(deaf, str(tmp_path)), DataConfig(path=""), PROMPT_LIMIT)
    with pytest.raises(SlimeError, match="leaves out message 3, of the role 'tool'"):
        chat.behind([], [{"role": "tool", "content": "12"}], ())


class Scripted:
    def __init__(self, does) -> None:
        self.does = does

    async def run(self, task, model):
        return await self.does(model)


def test_the_text_with_special_tokens_is_that_of_all_but_the_end(parts, tmp_path):
    form, tokenizer, _ = parts
    ends = [*(form_token(tokenizer, word) for word in form.ends), form_token(tokenizer, "</tool_call>")]  # one is plain
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    chat, rng = ChatFormat(tokenizer, DataConfig(path=""), PROMPT_LIMIT), random.Random(1)
    ends.append(tokenizer.eos_token_id)
    plain = [number for number in tokenizer.get_vocab().values() if number not in tokenizer.all_special_ids]
    assert chat.full_text([], "") == ""
    for words in (plain, sorted(tokenizer.get_vocab().values())):
        for _ in range(200):
            said = [number for number in rng.choices(words, k=rng.randint(1, 6)) if number not in ends]
            response = said + [rng.choice(ends)] * rng.randint(0, 1)
            text = tokenizer.decode(response, skip_special_tokens=True)
            assert chat.full_text(response, text) == tokenizer.decode(said, skip_special_tokens=False)


def test_conversations_of_an_attempt_are_segments_of_it(parts):
    async def two_at_once(model):
        main, other = model.conversation(), model.conversation([{"role": "user", "content": "help"}])
        await asyncio.gather(main.turn(), other.turn())
        await main.turn({"role": "user", "content": "thanks"})

    sample, requests = played(parts, Scripted(two_at_once))
    assert len(sample.segments) == 2
    assert sample.segments[0].context == sample.prompt.tokens != sample.segments[1].context
    assert sample.num_sampled == sum(sum(segment.loss_mask) for segment in sample.segments)
    assert len(requests) == 3


def test_where_there_is_no_room_the_response_is_empty_and_the_attempt_truncated(parts):
    async def long(model):
        conversation = model.conversation()
        await conversation.turn()
        turn = await conversation.turn({"role": "user", "content": "y" * LIMIT})
        assert turn == await conversation.turn({"role": "user", "content": "y" * LIMIT}) == Turn("", "length")

    sample, requests = played(parts, Scripted(long))
    assert (sample.status, len(requests)) == (Status.TRUNCATED, 1)
    assert sample.segments[0].loss_mask[-1] == 1


def test_a_conversation_that_begins_too_long_costs_the_attempt(parts):
    async def begin(model):
        await model.conversation([{"role": "user", "content": "y" * PROMPT_LIMIT}]).turn()

    sample, _ = played(parts, Scripted(begin))
    assert sample.status is Status.FAILED
    assert "rollout.max_prompt_tokens" in sample.verdict.reason
