"""DeepSeek-V3.2: its checkpoint has an encoder in Python, which SGLang carries, and no chat template."""

from __future__ import annotations

import random

import pytest

from slime.config.schema import DataConfig
from slime_agents.conversations.chat_format import ChatFormat

from .formats import FORMATS, tokenizer_of
from .talks import PROMPT_LIMIT

encoder = pytest.importorskip("sglang.srt.entrypoints.openai.encoding_dsv32")
TOKENS = {
    "<|bos|>": encoder.bos_token,
    "<|eos|>": encoder.eos_token,
    "<|User|>": "<\uff5cUser\uff5c>",
    "<|Assistant|>": "<\uff5cAssistant\uff5c>",
    "|DSML|": encoder.dsml_token,
}
WORDS = ("yes", "it is 12.5", 'a "b"', "{}", "\n\n", " ")


@pytest.fixture
def chat(tmp_path):
    return ChatFormat(tokenizer_of(FORMATS["deepseek-v3.2"], str(tmp_path)), DataConfig(path=""), PROMPT_LIMIT)


def ours(text: str) -> str:
    for our, theirs in TOKENS.items():
        text = text.replace(theirs, our)
    return text


def conversation(rng: random.Random) -> list[dict]:
    """Users, answers, and calls with their results, the last message not the model's."""
    messages = []
    for _ in range(rng.randint(1, 3)):
        messages.append({"role": "user", "content": said(rng)})
        for _ in range(rng.randint(0, 2)):
            calls = [
                {"type": "function", "function": {"name": "add", "arguments": {"a": rng.randint(0, 9), "b": said(rng)}}}
                for _ in range(rng.randint(1, 2))
            ]
            thought = {"reasoning_content": said(rng)} if rng.random() < 0.5 else {}
            messages.append({"role": "assistant", "content": said(rng), "tool_calls": calls, **thought})
            messages += [{"role": "tool", "content": said(rng)} for _ in calls]
        messages.append({"role": "assistant", "content": said(rng), "reasoning_content": said(rng)})
    return messages[:-1]


def said(rng: random.Random) -> str:
    return "x" + "".join(rng.choices(WORDS, k=rng.randint(0, 3))) + "y"


@pytest.mark.parametrize("seed", range(50))
def test_whole_conversations_and_what_comes_behind_a_turn_are_as_encoded(chat, seed):
    messages = conversation(random.Random(seed))
    whole = ours(encoder.encode_messages(messages, "thinking"))
    assert chat.render(messages, (), prompt=True) == whole
    last = max([number for number, each in enumerate(messages) if each["role"] == "assistant"], default=None)
    if last is None:
        return
    end = chat._tokenizer.eos_token_id
    added = chat._tokenizer.decode(chat.behind([end], messages[last + 1 :], ()))
    assert added
    assert whole.endswith("<|eos|>" + added)
