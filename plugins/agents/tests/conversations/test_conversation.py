"""Conversations of several turns: every request's tokens are a beginning of what is trained on in the end."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress

import pytest

from slime.config.schema import DataConfig
from slime.conversation import TooLongError
from slime.data import chat as chat_data
from slime.errors import SlimeError
from slime.time_limit import often
from slime.types import Sample, Status, Turn
from slime_agents.conversations import chat_format
from slime_agents.conversations.conversation import Conversations

from .formats import FORMATS, tokenizer_of
from .talks import LIMIT, PROMPT_LIMIT, TOOLS, Stage, form_token, remembered, talk


def played(parts, program, seed=1) -> tuple[Sample, list[list[int]]]:
    return asyncio.run(Stage(*parts, random.Random(seed)).play(program))


@pytest.fixture(params=FORMATS)
def parts(request, tmp_path):
    form = FORMATS[request.param]
    (tmp_path / "generation_config.json").write_text("{}")
    tokenizer = tokenizer_of(form, str(tmp_path))
    ids = [form_token(tokenizer, word) for word in form.ends]
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return form, tokenizer, Conversations(tokenizer, DataConfig(path=""), PROMPT_LIMIT)


@pytest.mark.parametrize("count", [100, pytest.param(10_000, marks=pytest.mark.slow)])
def test_every_request_is_a_beginning_of_the_segment(parts, count, monkeypatch):
    """And what the model sampled has a loss, its end token too, what the program wrote has none."""
    if count > 100:
        render, encode = remembered(chat_format.render, chat_format.encode)
        monkeypatch.setattr(chat_format, "render", render)
        monkeypatch.setattr(chat_format, "encode", encode)
    with often():  # as around every step of a run
        num_turns, num_ends = asyncio.run(talk(*parts, count))
    assert num_turns > 3 * count
    assert num_ends > count, "end tokens keep their loss"


OPENINGS = {"deepseek-v3": "<think>\n", "deepseek-v3.2": "<think>", "glm-4.7, glm-5": "<think>"}
BEFORE_ANSWERS = {
    "glm-4.5": "\n<think></think>\n",
    "glm-4": "\n",
    "glm-4.7, glm-5": "</think>",
    "deepseek-v3.2": "</think>",
}


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
    answer = tokenizer.encode(BEFORE_ANSWERS.get(name, "") + "b", add_special_tokens=False)
    if opening := OPENINGS.get(name):  # the history never holds the thinking that its own prompt opens
        opened = first = first[: -len(tokenizer.encode(opening, add_special_tokens=False))]
    said = [*opened, *answer, end]
    assert [*said, *chat.behind(said, plain[2:], ())] == whole
    assert first == whole[: len(first)]


@pytest.mark.parametrize("name", ["qwen3", "glm-4.5", "glm-4.7, glm-5", "deepseek-v3", "deepseek-v3.2", "llama-3"])
def test_parallel_results_are_one_block_and_a_template_may_want_arguments_either_way(name, tmp_path):
    form = FORMATS[name]
    chat = Conversations(tokenizer_of(form, str(tmp_path)), DataConfig(path=""), PROMPT_LIMIT)
    results = [{"role": "tool", "content": f"result {number}"} for number in range(2)]
    tokenizer = tokenizer_of(form, str(tmp_path))
    text = tokenizer.decode(chat.behind([], results, TOOLS))
    assert text.count("result ") == 2
    wanted = {
        "qwen3": "<tool_response>\nresult 0\n</tool_response>\n<tool_response>\nresult 1\n</tool_response><|im_end|>",
        "glm-4.5": "<|observation|>\n<tool_response>\nresult 0\n</tool_response>\n<tool_response>\nresult 1",
        "glm-4.7, glm-5": "<|observation|><tool_response>result 0</tool_response><tool_response>result 1"
        "</tool_response><|assistant|><think>",
        "deepseek-v3.2": "<function_results>\n<result>result 0</result>\n<result>result 1</result>\n"
        "</function_results>\n\n<think>",
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
    chat = Conversations(
        tokenizer_of(FORMATS["glm-4"]._replace(template=named), str(tmp_path)), DataConfig(path=""), 99
    )
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
    chat = Conversations(tokenizer_of(form, str(tmp_path)), DataConfig(path=""), PROMPT_LIMIT)
    with pytest.raises(SlimeError, match=r"writes token 0 as '3', and not '2', once the role 'tool' follows"):
        chat.behind([], [{"role": "tool", "content": "12"}], ())
    deaf = form._replace(
        template="{% for m in messages if m.role in ['user', 'assistant'] %}{{ m.content }}{% endfor %}"
    )
    chat = Conversations(tokenizer_of(deaf, str(tmp_path)), DataConfig(path=""), PROMPT_LIMIT)
    with pytest.raises(SlimeError, match="leaves out message 3, of the role 'tool'"):
        chat.behind([], [{"role": "tool", "content": "12"}], ())


def test_the_end_token_of_a_conversation_that_nobody_goes_on_with_is_left_out(tmp_path):
    """As Phi-3.5's template writes one where it does not open the model's turn."""
    text = "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|eot_id|>{% endfor %}"
    text += "{% if add_generation_prompt %}[assistant]{% else %}{{ eos_token }}{% endif %}"
    tokenizer = tokenizer_of(FORMATS["llama-3"]._replace(template=text), str(tmp_path))
    chat = Conversations(tokenizer, DataConfig(path=""), PROMPT_LIMIT)
    assert tokenizer.decode(chat.first([{"role": "user", "content": "a"}], ())) == "[user]a<|eot_id|>[assistant]"
    added = tokenizer.decode(chat.behind([], [{"role": "user", "content": "c"}], ()))
    assert added == "<|eot_id|>[user]c<|eot_id|>[assistant]"


class Scripted:
    def __init__(self, does) -> None:
        self.does = does

    async def run(self, task, model):
        return await self.does(model)


def test_the_text_with_special_tokens_is_that_of_all_but_the_end(parts, tmp_path):
    form, tokenizer, _ = parts
    ends = [*(form_token(tokenizer, word) for word in form.ends), form_token(tokenizer, "</tool_call>")]  # one is plain
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    chat, rng = Conversations(tokenizer, DataConfig(path=""), PROMPT_LIMIT), random.Random(1)
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


def test_a_long_text_is_encoded_beside_the_event_loop(parts, monkeypatch):
    """By the same tokens, and others are encoded meanwhile; of what is far too long only the begin is."""
    _, tokenizer, _ = parts
    limits = {"room": 10**7, "none": 1000}
    chats = {name: Conversations(tokenizer, DataConfig(path=""), limit) for name, limit in limits.items()}
    asked = [{"role": "user", "content": "hello to you, " * 60_000}]
    num_ticks = 0

    async def tick():
        nonlocal num_ticks
        while True:
            await asyncio.sleep(0.001)
            chats["room"].first([{"role": "user", "content": "hello"}], ())
            num_ticks += 1

    async def both():
        ticking = asyncio.create_task(tick())
        ids = await chats["room"].first_aside(asked, ())
        ticking.cancel()
        return ids

    assert asyncio.run(both()) == chats["room"].first(asked, ())
    assert num_ticks >= 3
    encoded = []
    real = chat_format.encode
    monkeypatch.setattr(chat_format, "encode", lambda known, texts: encoded.append(len(texts[0])) or real(known, texts))
    longest = max(map(len, tokenizer.get_vocab()))
    short_enough = [{"role": "user", "content": "hello to you, " * (1000 * longest // 14)}]
    too_long = [{"role": "user", "content": "hello to you, " * (1000 * longest // 14 + 2)}]
    for said in (short_enough, too_long):
        with pytest.raises(TooLongError):
            asyncio.run(chats["none"].first_aside(said, ()))
        assert bool(encoded) is (said is short_enough), "more characters than 1,000 tokens can have need no encoding"
        encoded.clear()


def test_a_thousand_messages_are_rendered_a_few_times(parts, monkeypatch):
    """And not twice for each, to learn whether the template knows its role."""
    _, _, chat = parts
    rendered = []
    real = chat_format.render
    monkeypatch.setattr(chat_data, "render", lambda *given, **more: rendered.append(1) or real(*given, **more))
    new = [{"role": "user" if number % 2 == 0 else "assistant", "content": f"{number}."} for number in range(1001)]
    for count in (1, 1001):
        rendered.clear()
        with suppress(SlimeError):  # of a template that has no place for them
            chat._chat.check_roles(new[:count], "here")
        assert 0 < len(rendered) <= 5
