"""`pip install slime-plugin-<family>` is enough to plan every recipe of the family."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from benchmarks.metadata import describe
from tests.third_party.conftest import FIRST_PARTY, ROOT, Environment, borrow_packages, needed_by, ours

FAMILIES = sorted(path.name for path in FIRST_PARTY if path.parent.name == "models")
PLANS = """
import sys
from slime.compose.compose import examine
for recipe in sys.argv[1:]:
    model, _, cluster = recipe.partition("+")[0].partition("@")
    composed = examine([f"+model={model}", f"+cluster={cluster}", f"recipe={recipe}"])
    for problem in composed.problems:
        print(f"{recipe}: {problem}")
    if not composed.memory and "local" not in cluster:
        print(f"{recipe}: its memory is not known")
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """What slime and the mathematical rewards ask for, and no distribution of this repository."""
    folder = tmp_path_factory.mktemp("outside") / "env"
    venv.create(folder)
    borrow_packages(folder, needed_by("slime-rl", "slime-rewards", "slime-observers"))
    return Environment(folder, folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_alone_plans_its_recipes(outside: Environment, family: str, tmp_path: Path) -> None:
    projects = ours(f"slime-plugin-{family}")
    assert not projects.keys() & {"slime-agents", "megatron-core-portable", "sglang-torch-cpu"}
    for path in projects.values():
        describe(path / "pyproject.toml", tmp_path)
    sources = (ROOT / "core" if path == ROOT else path for path in projects.values())
    [conf] = (ROOT / "plugins/models" / family).glob("*/conf/recipe")
    recipes = sorted(file.stem for file in conf.glob("*@*.yaml"))
    assert recipes
    alone = Environment(outside.folder, outside.wheels, (tmp_path, *sources))
    planned = alone.run("-c", PLANS, *recipes)
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout == ""
