"""The documentation's site builds without a warning: every page is in it, and every link and heading is there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    done = build(ROOT, tmp_path / "site")
    assert done.returncode == 0, done.stderr
    made = {path.parent.name for path in (tmp_path / "site").glob("*/index.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= made


def test_a_link_that_leads_nowhere_stops_it(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Here\n\n[gone](gone.md), [no such heading](#there)\n")
    config = re.sub(r"nav:.*", "", (ROOT / "mkdocs.yml").read_text(), flags=re.S)
    (tmp_path / "mkdocs.yml").write_text(config)
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "'gone.md'" in done.stderr
    assert "'#there'" in done.stderr


def test_every_page_is_in_the_index() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (ROOT / "docs/index.md").read_text()))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}
