"""benchmarks/chat_templates.py tells a template that can be used from one that cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plugins.agents.tests.conversations.formats import FORMATS, tokenizer_of
from slime_agents.endpoint.check_chat import KINDS


def test_conversations_are_counted_and_faults_are_named(program: Any, tmp_path: Path) -> None:
    form = FORMATS["qwen3"]
    base = tokenizer_of(form, str(tmp_path))
    tokenizer = program.with_template(base, "Qwen-Qwen3-0.6B", form.template, tmp_path)
    *kinds, rewritten = program.checked(tokenizer)
    assert kinds == ["kept"] * len(KINDS)
    assert "would write token" in rewritten
    ends, call, _ = program.TALKED["Qwen-Qwen3-0.6B"]
    told = program.talked(tokenizer, ends, call, 20, has_tools=True)
    assert told.startswith("20 conversations, ")
    assert told.endswith(" every request kept")
    counting = program.with_template(base, "counting", "{{ messages | length }}" + form.template, tmp_path)
    assert all("writes token 0 as" in kind for kind in program.checked(counting, 5)[1:-1])
    assert program.talked(counting, ends, call, 20, has_tools=True).startswith("fails: ")
