"""`slime check-chat` names what a chat template does to conversations."""

from __future__ import annotations

import pytest

from plugins.agents.tests.conversations.formats import FORMATS, tokenizer_of
from slime.__main__ import main


def checked(folder, form, capsys) -> tuple[int, str]:
    tokenizer_of(form, str(folder)).save_pretrained(folder)
    code = main(["check-chat", str(folder), "--count", "20"])
    return code, capsys.readouterr().out


@pytest.mark.parametrize("name", ["qwen3", "glm-4.5", "llama-3", "deepseek-v3"])
def test_templates_of_the_families_keep_their_tokens(tmp_path, capsys, name):
    code, out = checked(tmp_path, FORMATS[name], capsys)
    assert code == 0, out
    assert out.count("kept") == 4, out


def test_the_first_token_that_the_template_would_rewrite_is_named(tmp_path, capsys):
    _, out = checked(tmp_path, FORMATS["qwen3"], capsys)
    assert "rendered whole, the template would write token" in out


def test_a_template_that_rewrites_what_was_said_is_unfit(tmp_path, capsys):
    form = FORMATS["qwen3"]._replace(template="{{ messages | length }}" + FORMATS["qwen3"].template)
    code, out = checked(tmp_path, form, capsys)
    assert code == 1
    assert "writes token 0 as" in out
