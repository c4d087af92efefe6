"""Rules of this repository that no linter knows."""

import ast
import re
import subprocess
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from tests.floors import room_of

ROOT = Path(__file__).parents[1]
MAX_LINES = 350
MODELS = [folder.name for folder in (ROOT / "plugins/models").iterdir() if folder.is_dir()]
FAMILIES = re.compile("|".join(re.split(r"[-\d]", name)[0] for name in MODELS), re.IGNORECASE)
CITATION = re.compile(r"arXiv \d{4}\.\d{5}|\(DeepSeek-AI \d{4}\)|from sglang\.srt\.models\.deepseek_common\.")
"""A paper may be cited by its title or authors: that is the source of a formula and no dependence on a family. SGLang
keeps the latent attention of all families under the name of the first."""
BLOCKS = re.compile(r"dsa|mtp|indexer|sparse(?!r)", re.IGNORECASE)
"""Sparse attention and multi-token prediction, which are rooms of their own (`slime_megatron`)."""
NAMES = re.compile(
    r"mtp_loss_scale|config\.mtp_num_layers|[dn]sa_(?:prefill|decode)_backend|enable_dsa_prefill_context_parallel"
    r"|\"sparse\" if of_layer"
)
"""A key of the config, and fields of Megatron-core's and SGLang's: whoever passes them on has to name them. "sparse" is
transformers' word for a layer with experts."""
KNOW_BLOCKS = {
    "config/megatron_fields.py": "fields of Megatron-core's config, which has some for these blocks",
}
"""Files of core that name a special block, and why they must. All others learn of blocks by what these state:
`slime.models.blocks`, `slime.models.traits`, the rules of the weight mapping."""
BUDGETS: dict[str, int] = tomllib.loads((ROOT / "tests/budgets.toml").read_text())["lines"]
"""Lines of Python a room, by its folder; of a folder with rooms inside, those of the modules at its top."""
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|tmp|root|home)/\w")
GENERATED = ("docs/config.md", "docs/hooks.md")


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in names.stdout.split("\0") if name and (ROOT / name).is_file()]


def lines_with(pattern: re.Pattern[str], files: list[Path]) -> list[str]:
    return [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


@pytest.fixture(scope="module", autouse=True)
def _checkout() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("rules of the repository are checked in a checkout")


def test_core_names_no_model_family() -> None:
    named = lines_with(FAMILIES, tracked("core/**.py", "conf/**.yaml"))
    assert [line for line in named if not CITATION.search(line)] == []


def test_no_room_names_a_special_block() -> None:
    core = ROOT / "core/slime"
    rooms = tracked("core/**.py")
    assert len(rooms) > 200
    naming = {
        str(file.relative_to(core)) for file in rooms if BLOCKS.search(NAMES.sub("", file.read_text(encoding="utf-8")))
    }
    assert naming == KNOW_BLOCKS.keys()


def test_conversions_name_no_special_block() -> None:
    files = tracked("plugins/tools/slime_tools/convert/**.py")
    assert len(files) > 10
    assert lines_with(BLOCKS, files) == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    assert lines_with(MACHINE_PATHS, [file for file in tracked() if file.name != "test_house.py"]) == []


def test_no_file_has_marks_of_a_merge_that_nobody_finished() -> None:
    assert lines_with(re.compile(r"^(?:<{7}|>{7}) \S"), tracked()) == []


def product() -> list[Path]:
    """Every Python file of core and of the distributions beside it, tests and tools of authors left out."""
    apart = re.compile(r"/tests/|^plugins/conftest\.py$|plugins/models/[^/]+/tools/")
    return [
        file for file in tracked("core/slime/**.py", "plugins/**.py") if not apart.search(str(file.relative_to(ROOT)))
    ]


def test_rooms_keep_to_their_budgets() -> None:
    """A commit that raises a budget says why. A room that no row names has none."""
    rooms = Counter[str]()
    for file in product():
        rooms[room_of(file)] += len(file.read_text().splitlines())
    assert {room: size for room, size in rooms.items() if size > BUDGETS.get(room, 0)} == {}
    assert sum(rooms.values()) > sum(BUDGETS.values()) * 0.97, "lower the budgets to what is there"


def test_files_are_short() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in tracked("*.py")}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


TAKE_THE_WHOLE_CONFIG = 52
"""Functions with a parameter `SlimeConfig`. Lower it with each that takes a section or `Topology` instead."""


def test_few_functions_take_the_whole_config() -> None:
    found = 0
    for file in product():
        functions = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, FUNCTION))
        for function in functions:
            parameters = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
            hints = (ast.unparse(parameter.annotation) for parameter in parameters if parameter.annotation)
            found += any("SlimeConfig" in hint for hint in hints)
    assert found <= TAKE_THE_WHOLE_CONFIG


FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_engine_groups_are_made_in_one_place() -> None:
    calls = re.compile(r"(?<!def )\bengine_groups\(")
    assert [line.split(":")[0] for line in lines_with(calls, tracked("core/slime/**.py"))] == [
        "core/slime/topology/topology.py"
    ]
