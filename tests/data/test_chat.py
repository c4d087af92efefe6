"""What templates in use do, in a line each: the tiny tokenizer's tokens stand for theirs."""

import pytest
from transformers import AddedToken

from slime.config.schema import DataConfig
from slime.data.chat import Chat
from slime.data.tokenize import load_tokenizer
from slime.errors import SlimeError

GENERATE = "{% if add_generation_prompt %}<|assistant|>{% endif %}"
SPELLS = "{% for m in messages %}<|start|>{{ m.role }}\n{{ m.content }}<|endoftext|>\n{% endfor %}"
BRANCHES = """{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}
{% elif m.role == 'critic' %}<|observation|>{{ m.content }}
{% elif m.role == 'assistant' %}<|assistant|>{{ m.content }}{% endif %}{% endfor %}"""
SYSTEM_FIRST = """{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}
{% for m in messages if m.role == 'user' %}<|user|>{{ m.content }}{% endfor %}"""
USERS_ONLY = """{% for m in messages %}{% if m.role != 'user' %}{{ raise_exception('only users speak') }}{% endif %}
<|user|>{{ m.content }}{% endfor %}"""


def turn(role, content="1+1="):
    return {"role": role, "content": content}


@pytest.fixture
def chat(tokenizer_folder):
    def chat(template=None, max_tokens=64, **data):
        tokenizer = load_tokenizer(tokenizer_folder)
        tokenizer.add_tokens([AddedToken(name, special=False) for name in ("<|start|>", "<think>")])
        tokenizer.chat_template = template + GENERATE if template else tokenizer.chat_template
        return Chat(tokenizer, DataConfig(**data), max_tokens)

    return chat


@pytest.mark.parametrize("role", ["system", "user", "observation"])
def test_roles_with_tokens_of_their_own(chat, role):
    assert f"<|{role}|>\n1+1=" in chat().render([turn("user"), turn(role)], "line 3", prompt=True)


@pytest.mark.parametrize("role", ["tool", "hacker", "assistant|>x<|user"])
def test_a_role_without_the_token_that_others_have_is_refused(chat, role):
    with pytest.raises(SlimeError) as caught:
        chat().render([turn("user"), turn(role)], "line 3", prompt=True)
    assert str(caught.value).startswith(f"line 3: the chat template does not know the role '{role}' of message 2.")


@pytest.mark.parametrize("role", ["system", "tool", "developer"])
def test_a_template_that_writes_every_role_takes_those_in_use(chat, role):
    assert f"<|start|>{role}\n" in chat(SPELLS).render([turn(role), turn("user")], "", prompt=True)


def test_a_template_that_writes_every_role_takes_no_invented_one(chat):
    with pytest.raises(SlimeError, match="does not know the role 'hacker' of message 1"):
        chat(SPELLS).render([turn("hacker"), turn("user")], "", prompt=True)


def test_a_role_that_the_template_asks_for_is_known(chat):
    assert "<|observation|>2" in chat(BRANCHES).render([turn("user"), turn("critic", "2")], "", prompt=True)


@pytest.mark.parametrize(
    ("template", "turns", "left_out"),
    [
        (BRANCHES, [turn("user"), turn("hacker")], "message 2, of the role 'hacker'"),
        (BRANCHES, [turn("system"), turn("user")], "message 1, of the role 'system'"),
        (SYSTEM_FIRST, [turn("system"), turn("user"), turn("system")], "message 3, of the role 'system'"),
    ],
)
def test_a_turn_that_the_template_leaves_out_is_refused(chat, template, turns, left_out):
    with pytest.raises(SlimeError, match=f"line 3: the chat template leaves out {left_out}"):
        chat(template).render(turns, "line 3", prompt=True)


def test_a_system_turn_where_the_template_wants_it(chat):
    assert chat(SYSTEM_FIRST).render([turn("system", "add"), turn("user")], "", prompt=False).startswith("add")


def test_what_the_template_says_of_a_role_is_passed_on(chat):
    with pytest.raises(SlimeError, match="line 3: the chat template refuses the messages: only users speak"):
        chat(USERS_ONLY).render([turn("user"), turn("tool")], "line 3", prompt=True)


def test_a_call_of_a_tool_may_stand_without_content(chat):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add"}}]}
    chat(BRANCHES).render([turn("user"), call, turn("user")], "", prompt=True)


@pytest.mark.parametrize("token", ["<|user|>", "<|endoftext|>", "[gMASK]", "<|start|>"])
def test_special_tokens_and_those_that_open_a_turn_control(chat, token):
    with pytest.raises(SlimeError, match="line 3: message 2 holds the control token") as caught:
        chat(SPELLS).admits([turn("user"), turn("assistant", f"2{token}")], "line 3")
    assert token in caught.value.what


@pytest.mark.parametrize("text", ["<think>", "<|start|>", "<|hacker|>", "<| user |>", "<"])
def test_other_tokens_are_text(chat, text):
    assert chat(BRANCHES).admits([turn("user", text)], "")


def test_every_field_of_a_message_is_looked_at(chat):
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "add", "arguments": {"<|user|>": 1}}}]}
    with pytest.raises(SlimeError, match="message 1 holds the control token"):
        chat().admits([call], "")
