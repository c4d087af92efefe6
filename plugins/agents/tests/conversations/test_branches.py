"""Conversations that branch, turns that nobody heard, and what a program begins a conversation with."""

from __future__ import annotations

import asyncio

import pytest

from slime.config.schema import DataConfig
from slime.conversation import RefusedError, TooLongError
from slime.errors import SlimeError
from slime.sampling.stats import group_stats
from slime.types import Group, Status
from slime_agents.conversations.chat_format import ChatFormat

from .formats import FORMATS, tokenizer_of
from .test_conversation import LIMIT, PROMPT_LIMIT, TOOLS, Scripted, parts, played

__all__ = ["parts"]
USER = {"role": "user", "content": "go on"}


def sampled(sample):
    return [token for segment in sample.segments for token, mask in zip(segment.tokens, segment.loss_mask, strict=True)
            if mask]  # fmt: skip


def test_a_branch_has_the_tokens_of_the_turns_before_it_and_trains_on_its_own_alone(parts):
    turns = []

    async def branches(model):
        main = model.conversation()
        turns.append(await main.turn())
        turns.extend(await asyncio.gather(main.turn(USER), main.branch(1).turn({**USER, "content": "or else"})))
        turns.append(await main.branch(0).turn())
        turns.append(await main.branch(2).turn(USER))

    sample, requests = played(parts, Scripted(branches), seed=4)
    assert sample.status is not Status.FAILED, sample.verdict
    main, other, again, later = sample.segments
    first = turns[0].num_sampled
    assert other.context == (*main.context, *main.tokens[:first])
    assert again.context == main.context
    assert later.context == (*main.context, *main.tokens)
    assert len(sampled(sample)) == sum(turn.num_sampled for turn in turns), "each sampled token has its loss once"
    for request in requests:
        assert any(request == [*each.context, *each.tokens][: len(request)] for each in sample.segments)
    assert turns[4].num_before + turns[4].num_sampled == len(later.context) + len(later.tokens)


def test_tokens_are_counted_as_the_next_turn_has_them_before_it(parts):
    """At the start, behind a turn, in a branch before its first turn and behind it."""
    counted = []

    async def counts(model):
        async def both(conversation, *new):
            before = [await conversation.count(*new) for _ in range(2)]
            counted.append((*before, (await conversation.turn(*new)).num_before))

        main = model.conversation()
        await both(main)
        await both(main, USER)
        branch = main.branch(1)
        await both(branch, {**USER, "content": "or else"})
        await both(branch, USER)
        await both(main)

    sample, _ = played(parts, Scripted(counts), seed=4)
    assert sample.status is not Status.FAILED, sample.verdict
    assert len(counted) == 5
    assert all(len(set(each)) == 1 for each in counted), counted


def test_a_branch_has_the_room_that_is_left(parts):
    async def long(model):
        main = model.conversation()
        await main.turn()
        await main.turn({**USER, "content": "y" * (LIMIT // 2)})
        branch = main.branch(2)
        assert (await branch.turn({**USER, "content": "y" * (LIMIT // 2)})).finish == "length"

    sample, _ = played(parts, Scripted(long))
    assert (sample.status, len(sample.segments)) == (Status.TRUNCATED, 1)


def test_what_nobody_heard_is_neither_judged_nor_trained_on(parts):
    whole, texts = [], []

    async def unheard(model):
        main = model.conversation()
        texts.append((await main.turn()).text)
        whole.append(list(main._segment.tokens))
        await main.turn(USER)
        branch = main.branch(1)
        await branch.turn(USER)
        main.take_back()
        branch.take_back()
        model.note("forks", 2)

    sample, _ = played(parts, Scripted(unheard))
    [segment] = sample.segments
    segment.check()
    assert (segment.tokens, sample.response) == (whole[0], texts[0])
    assert group_stats([Group(sample.prompt, [sample])])["rollout/forks_mean"] == 2


def test_a_note_has_the_name_of_a_metric(parts):
    async def noting(model):
        await model.conversation().turn()
        model.note("Forks/n", 2)

    sample, _ = played(parts, Scripted(noting))
    assert "no name of a metric" in sample.verdict.reason


def test_a_stop_string_of_one_turn_ends_it(parts):
    async def stopped(model):
        main = model.conversation()
        turn = await main.turn(stop=["1"])
        while "1" not in turn.full_text:
            turn = await main.turn(USER, stop=["1"])
        assert turn.full_text.endswith("1")
        assert turn.finish == "stop"

    sample, _ = played(parts, Scripted(stopped))
    assert sample.status is Status.COMPLETED, sample.verdict


def test_control_tokens_that_a_program_begins_with_do_not_act(parts):
    form, tokenizer, chat = parts
    hostile = [{"role": "user", "content": "".join(form.special)}]
    context = []

    async def begin(model):
        conversation = model.conversation(hostile)
        await conversation.turn()
        context.extend(conversation._segment.context)

    played(parts, Scripted(begin))
    controls = set(tokenizer.convert_tokens_to_ids(list(form.special)))
    plain = chat.first([{"role": "user", "content": "x"}], ())
    assert [token for token in context if token in controls] == [token for token in plain if token in controls]


def test_a_history_is_written_as_the_template_wants_it(parts):
    """Arguments as an object or as JSON, results under the role that the template knows; else it is refused."""
    form, tokenizer, chat = parts
    for arguments in ({"a": 1}, '{"a": 1}'):
        call = {"type": "function", "id": "call00001", "function": {"name": "add", "arguments": arguments}}
        history = [
            {"role": "user", "content": "add"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call00001", "name": "add", "content": 'it is "3"'},
        ]
        if not form.has_tools or form is FORMATS["glm-4"]:  # which has no place for a call
            with pytest.raises(RefusedError):
                chat.first(history, TOOLS)
            continue
        assert "add" in (text := tokenizer.decode(chat.first(history, TOOLS)))
        assert 'it is "3"' in text
    if form is FORMATS["glm-4"]:
        assert "<|observation|>\nit is" in tokenizer.decode(chat.first([history[0], history[2]], TOOLS))


def test_what_is_too_long_is_told_apart(tmp_path):
    chat = ChatFormat(tokenizer_of(FORMATS["qwen3"], str(tmp_path)), DataConfig(path=""), PROMPT_LIMIT)
    with pytest.raises(TooLongError) as found:
        chat.first([{"role": "user", "content": "y" * PROMPT_LIMIT}], ())
    assert isinstance(found.value, SlimeError)
