"""The documentation's site builds without a warning: every page is in it, and every link and heading is there."""

from __future__ import annotations

import html
import inspect
import pkgutil
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from slime.contracts import RewardModel

ROOT = Path(__file__).parents[1]


def build(checkout: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    done = build(ROOT, site)
    assert done.returncode == 0, done.stderr
    return site


def test_the_site_builds_strictly(built: Path) -> None:
    made = {path.parent.name for path in built.glob("*/index.html")}
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} - {"index"} <= made


def test_every_name_to_build_on_is_in_the_reference(built: Path) -> None:
    """With what the installed module has: the page is made from the source, and so is the signature."""
    shown = (built / "api/index.html").read_text(encoding="utf-8")
    modules = re.findall(
        r"^::: (\S+)(?:\n    options:\n      members: \[(.*)\])?$", (ROOT / "docs/api.md").read_text(), re.M
    )
    names = [f"{module}.{name}" for module, listed in modules for name in listed.split(", ") if name]
    assert len(names) > 90
    assert [name for name in names if f'id="{name}" class="doc doc-heading"' not in shown] == []
    for name in names:
        pkgutil.resolve_name(name)
    text = html.unescape(re.sub(r"<[^>]+>", "", shown))
    assert "score(sample: Sample) -> Verdict" in text
    assert str(inspect.getdoc(RewardModel.score)).partition("`")[0] in text


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
    linked = set(re.findall(r"\]\(([\w-]+\.md)[#)]", (ROOT / "docs/index.md").read_text()))
    assert linked == {page.name for page in (ROOT / "docs").glob("*.md")} - {"index.md"}


def test_the_readme_ends_with_the_index() -> None:
    """Its links are absolute, because a package index shows the file without the others."""
    index = (ROOT / "docs/index.md").read_text().partition("| I want to |")[2]
    shown = (ROOT / "README.md").read_text().partition("## Documentation\n\n| I want to |")[2]
    assert shown.replace("https://github.com/slime-rl/slime/blob/main/docs/", "") == index


def test_pictures_are_whole_and_need_nothing_from_elsewhere() -> None:
    pictures = sorted((ROOT / "docs/images").glob("*.svg"))
    assert pictures
    for picture in pictures:
        assert ElementTree.parse(picture).getroot().get("viewBox"), f"{picture.name} cannot be scaled"
        text = picture.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|<script|<image", text), picture.name
