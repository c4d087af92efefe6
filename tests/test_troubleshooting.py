"""Every message that docs/troubleshooting.md quotes is one that the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
QUOTED = [line for block in re.findall(r"^```text\n(.*?)^```", PAGE, re.M | re.S) for line in block.splitlines()]
JOINED = re.compile(r"""["']\s*\n\s*[rf]*["']""")
"""Between the parts of a text that is written over several lines."""
SOURCES = sorted(
    path
    for code in ("core/slime", "plugins/*/slime_*", "plugins/models/*/slime_*")
    for path in ROOT.glob(f"{code}/**/*.py")
)
CODE = [JOINED.sub("", path.read_text(encoding="utf-8")) for path in SOURCES]


def test_the_page_quotes_messages() -> None:
    assert len(QUOTED) > 25


@pytest.mark.parametrize("line", QUOTED)
def test_a_quoted_message_is_one_of_the_code(line: str) -> None:
    """What stands between `...` is found in one file, in this order; what differs from run to run stands between."""
    parts = [part.strip() for part in line.split("...") if part.strip()]
    assert sum(map(len, parts)) > 8, "something to look for"
    wanted = re.compile(r"[^\n]*?".join(map(re.escape, parts)))
    assert any(wanted.search(text) for text in CODE), f"no code says: {line}"
