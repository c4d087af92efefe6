"""Rules of this repository that no linter knows."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAX_LINES = 350
FAMILIES = re.compile(r"glm|deepseek|qwen|mimo", re.IGNORECASE)
CITATION = re.compile(r"arXiv \d{4}\.\d{5}|\(DeepSeek-AI \d{4}\)|from sglang\.srt\.models\.deepseek_common\.")
"""A paper may be cited by its title or authors: that is the source of a formula and no dependence on a family. SGLang
keeps the latent attention of all families under the name of the first."""
BLOCKS = re.compile(r"dsa|mtp|indexer|sparse", re.IGNORECASE)
GENERIC = [f"core/slime/{room}/**.py" for room in ("train", "weights/megatron", "weights/publisher", "algo", "convert")]
"""What learns of a model's blocks by `slime.models.traits` and by the rules of its table alone."""
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


def test_trainer_and_publisher_name_no_special_block() -> None:
    files = tracked(*GENERIC)
    assert len(files) > 40
    assert lines_with(BLOCKS, files) == []


def test_no_file_names_a_place_on_somebodys_machine() -> None:
    assert lines_with(MACHINE_PATHS, [file for file in tracked() if file.name != "test_house.py"]) == []


def test_files_are_short() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in tracked("*.py")}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}
