"""Commands that a user types from a page of the guides, or from an example."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

GUIDES = Path(__file__).parents[1] / "docs"
EXAMPLES = GUIDES.parent / "examples"


def typed(guide: str, words: str, folder: Path) -> dict[str, str]:
    """The settings of the one command of a page with these words; the Python files that it names are written into the
    folder, as the page shows them."""
    text = (GUIDES / guide).read_text().replace("\\\n", " ")
    [command] = [line for line in re.findall(r"^    slime (.*)$", text, re.M) if f" {words} " in f" {line} "]
    for file, name in re.findall(r"(\w+\.py)(?::(\w+))?", command):
        wanted = rf"^(?:class|(?:async )?def) {name}\b" if name else r"OpenAI\(\)"
        blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        [block] = [block for block in blocks if re.search(wanted, block, re.M)]
        (folder / file).write_text(block)
    return settings(command)


def settings(command: str) -> dict[str, str]:
    """The keys behind model and cluster of a command for the laptop, without the name of the run."""
    choices = dict(word.lstrip("+").split("=", 1) for word in shlex.split(command) if "=" in word)
    assert (choices.pop("model"), choices.pop("cluster")) == ("glm4-tiny", "local")
    choices.pop("run.name", None)
    return choices


def commands(page: Path) -> list[str]:
    """The indented lines of a page that are typed into a shell, in their order."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.findall(r"^    (\S.*)$", text.replace("\\\n", " "), re.M)


def example(name: str, folder: Path) -> dict[str, str]:
    """The settings of an example's last command, for a run in this folder, which gets the examples."""
    (folder / "examples").symlink_to(EXAMPLES)
    return settings(commands(EXAMPLES / name / "README.md")[-1])
