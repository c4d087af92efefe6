"""SGLang of another program, in an environment that has slime: nothing of it is changed."""

from __future__ import annotations

import os
import sys

import pytest

from slime_testing.patience import run_within

HOOKS = """
from sglang.srt.plugins import load_plugins
from sglang.srt.plugins.hook_registry import HookRegistry
load_plugins()
hooks = [hook for entries in HookRegistry._hooks.values() for _, hook, _ in entries]
print("hooks:", sum(hook.__module__.startswith("slime_sglang.engine") for hook in hooks), "of", len(hooks))
"""


@pytest.mark.slow
@pytest.mark.parametrize("ours", [False, True])
def test_hooks_are_of_engines_of_ours_alone(ours: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLIME_ENGINE")}
    environment |= {"SLIME_ENGINE_SCRATCH": "engine"} if ours else {}
    ended = run_within(200, [sys.executable, "-c", HOOKS], env=environment)
    number, total = (int(word) for word in ended.stdout.split("hooks:")[1].split(" of "))
    assert total >= number
    assert (number > 10) == ours
    assert ours or not number
