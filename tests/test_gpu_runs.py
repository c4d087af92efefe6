"""Every run that a GPU test or a sitting on a GPU machine starts has a config without a problem, seen without a GPU."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from pathlib import Path

import pytest

from slime.compose.compose import examine
from tests.gpu_runs import KINDS, SMALL, GpuRun
from tests.running import Run, write_rows

ROOT = Path(__file__).parents[1]
SESSION = ROOT / "benchmarks/gpu_session.sh"
HOSTS = {"cluster.ray_address": "127.0.0.1:6379"}


@pytest.mark.parametrize(
    "of", [pytest.param(of, id=f"{kind}-{name}") for kind in KINDS for name, of in KINDS[kind].items()]
)
def test_a_run_of_a_gpu_test_is_composed(of: GpuRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path)
    monkeypatch.chdir(tmp_path)
    over = HOSTS if "cluster.num_nodes" in of.settings else {}
    words = Run(tmp_path, of.model, of.cluster, {**SMALL, **of.settings, **over}).words
    assert [str(problem) for problem in examine(words).problems] == []


def parts() -> dict[str, list[int]]:
    """By part of the script, the numbers of GPUs that its head names."""
    found = {}
    for line in SESSION.read_text().splitlines():
        if head := re.match(r"# ([a-z][\w, -]*?) +(1|2|4|2, 4|any) +\d+ ", line):
            numbers = [1, 2, 4] if head[2] == "any" else [int(number) for number in head[2].split(", ")]
            found |= dict.fromkeys(head[1].split(", "), numbers)
    return found


def commands(folder: Path, gpus: int, part: str) -> list[list[str]]:
    """What the script would run, a list of words each."""
    environment = {**os.environ, "SHOW_ONLY": str(gpus), "MODEL": "smollm2"}
    command = ["bash", str(SESSION), str(folder), part]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert not shown.stderr
    return [words for line in shown.stdout.splitlines() if len(words := shlex.split(line)) > 1]


@pytest.mark.parametrize(("part", "gpus"), [(part, gpus) for part, numbers in parts().items() for gpus in numbers])
def test_a_run_of_a_sitting_is_composed(part: str, gpus: int, tmp_path: Path) -> None:
    found = commands(tmp_path, gpus, part)
    assert found
    for words in found:
        keys = [word for word in words if "=" in word and not word.startswith("-")]
        if any(word.startswith("+model=") for word in keys):
            assert [str(problem) for problem in examine(keys).problems] == [], shlex.join(words)


def test_the_head_of_the_script_names_its_parts() -> None:
    named = {*re.findall(r"^    ([a-z0-9-]+(?:, [a-z0-9-]+)*)\)", SESSION.read_text(), re.MULTILINE)}
    assert named == parts().keys()
    assert len(named) > 25
