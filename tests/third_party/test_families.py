"""Families that docs/writing-a-model-plugin.md shows in part, laid out as pip would, held against the contract."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime import plugins
from slime_testing.contract import CHECKS, contracts
from tests.site import Site

FAMILIES = Path(__file__).parent / "families"
CONTRACTS = contracts(FAMILIES / "configs")
KEPT = (".py", ".toml")
PAGE = (Path(__file__).parents[2] / "docs/writing-a-model-plugin.md").read_text()


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("site")
    files = {str(file.relative_to(FAMILIES)): file.read_text() for file in FAMILIES.rglob("*") if file.suffix in KEPT}
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        Site(folder).add_project(files)
        yield
    for name in [name for name in sys.modules if name.startswith("slime_families")]:
        del sys.modules[name]
    plugins.load.cache_clear()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("model", CONTRACTS)
def test_contract(model: str, check: str) -> None:
    CHECKS[check](CONTRACTS[model])


@pytest.mark.parametrize("family", ["phi3", "exaone4", "olmo2", "stablelm"])
def test_what_the_page_shows_of_a_family_is_in_it(family: str) -> None:
    """Every line of the page's indented code that follows the name of the family's file."""
    source = [line.strip() for line in (FAMILIES / f"slime_families/{family}.py").read_text().splitlines()]
    shown = PAGE.partition(f"`tests/third_party/families/slime_families/{family}.py`")[2].split("\n\n")[1]
    lines = [line.strip() for line in shown.splitlines()]
    assert len(lines) > 1
    assert [line for line in lines if line not in source] == []
