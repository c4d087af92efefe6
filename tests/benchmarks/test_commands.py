"""The runs that benchmarks say they measure are ones that slime accepts."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from slime.compose.compose import compose, examine

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def commands() -> Iterator[tuple[str, str]]:
    """Of each benchmark that takes a run's settings: its name, and what its docstring gives it."""
    for name in ("offload", "publish"):
        for line in (BENCHMARKS / f"{name}.py").read_text().splitlines():
            command, _, _ = line.strip().partition("#")
            if command.startswith(f"python benchmarks/{name}.py +"):
                yield name, command.partition("+")[2].strip()


@pytest.mark.parametrize(("name", "settings"), list(commands()))
def test_run_is_accepted(name: str, settings: str) -> None:
    rest = runpy.run_path(str(BENCHMARKS / f"{name}.py"))["REST"]
    assert compose([*f"+{settings}".split(), *rest]).model.name == "glm4-9b-trial"


def session(name: str) -> list[str]:
    """The words of an array of `gpu_session.sh`."""
    lines = re.findall(rf"^{name}\+?=\((.*)\)$", (BENCHMARKS / "gpu_session.sh").read_text(), re.M)
    assert lines
    return [word for line in lines for word in line.split()]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("cut", ["+cluster=h200x1"]),
        ("cut", ["+cluster=h200x1", "weights.transport=disk"]),
        ("nine", ["+cluster=h200x2-split", "train.optimizer.optimizer_cpu_offload=true"]),
        ("nine", ["+cluster=h200x4-split", "train.optimizer.optimizer_cpu_offload=true"]),
        ("nine", ["+cluster=h200x4"]),
    ],
)
def test_a_session_on_gpus_has_runs_that_fit(model: str, words: list[str]) -> None:
    assert compose([*session(model), *words]).model.name == "glm4-9b-trial"


IN_80_GB = "cluster.device_memory_mb=81559"
PIPELINE = ["train.megatron.tensor_model_parallel_size=1", "train.megatron.pipeline_model_parallel_size=2"]
EXPERTS = ["train.megatron.expert_model_parallel_size=2", "train.megatron.expert_tensor_parallel_size=1"]


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (["nine"], ["+cluster=h200x4", "train.max_tokens_per_micro_batch=5120"]),
        (["nine", "sources"], ["model.num_layers=24"]),
        (["nine", "sources"], ["model.num_layers=24", *PIPELINE]),
        (
            ["flash", "sources"],
            [*EXPERTS, "reward=arithmetic", "data.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl"],
        ),
        (["stale"], ["+cluster=h200x4-split", "rollout.max_staleness=2"]),
    ],
)
def test_a_session_on_four_gpus_of_80_gb_has_runs_that_fit(arrays: list[str], words: list[str]) -> None:
    given = [word for name in arrays for word in session(name)]
    assert examine([*given, *words, IN_80_GB]).problems == []


def parts_of_the_first_hour() -> Iterator[tuple[str, list[str]]]:
    """Every run of `first_hour.sh`: its part and its words."""
    script = (BENCHMARKS / "first_hour.sh").read_text()
    arrays = {name: words.split() for name, words in re.findall(r"^(short|long)=\((.*)\)$", script, re.M)}
    (common,) = re.findall(r"python3 -m slime (.*) \\$\n(.*) \"\$@\"", script, re.M)
    always = [word for word in " ".join(common).replace("\\", "").split() if "$" not in word]
    for part, words in re.findall(r"^    (\S+)\).*slime \S+ \d+ (.*) ;;$", script, re.M):
        given = words.replace('"${part#seed-}"', "1").split()
        arrayed = [arrays[word[3:].partition("[")[0]] if word.startswith('"${') else [word] for word in given]
        yield part, [*always, *(word for several in arrayed for word in several)]


@pytest.mark.parametrize(("part", "words"), list(parts_of_the_first_hour()))
def test_the_first_hour_has_runs_that_fit(part: str, words: list[str]) -> None:
    composed = examine(words)
    assert composed.problems == []
    assert composed.cfg.model.name == "smollm2-135m"
    assert composed.topology is not None
    assert composed.topology.takes_turns is (part == "turns")


def test_the_first_hour_names_its_parts() -> None:
    script = (BENCHMARKS / "first_hour.sh").read_text()
    parts = [part for part, _ in parts_of_the_first_hour()]
    assert [part.replace("-*", "-1..3") for part in parts] == re.findall(r"^# (\S+) +\d+  ", script, re.M)
