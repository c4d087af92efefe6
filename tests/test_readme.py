"""What the README shows is true: its commands exist, its plugin works, its links lead somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from slime import __main__ as command
from slime.hookspecs import SlimeHooks
from slime.types import Prompt, Sample, Verdict

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_make_targets_exist() -> None:
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.M)
    assert set(re.findall(r"^    make (\w+)", README, re.M)) <= set(targets)
    assert "python -m slime +model=glm4-tiny +cluster=local" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("line", re.findall(r"^    slime (.*?)\s+#", README, re.M))
def test_every_command_is_understood(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Verbs that start processes are planned instead: the same words, the same checks."""
    words = shlex.split(line)
    if words[0] != "plugins":
        words = ["plan", *(word for word in words if "=" in word)]
    assert command.main(words) == 0, capsys.readouterr().err


def test_the_reward_plugin_is_the_documented_one_and_scores() -> None:
    (block,) = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(block.splitlines()) <= 20
    module: dict[str, object] = {}
    exec(block, module)
    hook = module["slime_rewards"]
    assert hasattr(SlimeHooks, hook.__name__)  # type: ignore[attr-defined]
    reward = hook()["brevity"](max_chars=10)  # type: ignore[operator]
    sample = Sample(Prompt("0/1", (), (1,)), 0, response="12345")
    assert reward.score(sample) == Verdict.of(0.5)


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)]+)\)", README))
def test_every_link_leads_to_a_file(target: str) -> None:
    assert (ROOT / target).exists()


@pytest.mark.parametrize("path", re.findall(r"`((?:tests|core|plugins)/[\w/*.-]+)`", README))
def test_every_named_path_exists(path: str) -> None:
    assert list(ROOT.glob(path))
