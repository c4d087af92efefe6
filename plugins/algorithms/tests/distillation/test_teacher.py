"""What is said of a teacher before anything starts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine
from slime.config.paths import resolve
from slime_tools.memory.estimate import GpuMemory
from slime_tools.memory.memory_plan import MemoryPlan
from slime_tools.memory.trainer import Phase

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
TINY = resolve("pkg://slime_plugin_glm4/assets/glm4-tiny")
SAME = "Name a teacher of the same architecture and vocabulary."


def folder_of(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None] | None = None) -> Path:
    """A copy of the tiny model as somebody downloaded it; `change` gets config.json and tokenizer.json."""
    shutil.copytree(TINY, path)
    documents = {name: json.loads((path / name).read_text()) for name in ("config.json", "tokenizer.json")}
    if change:
        change(*documents.values())
        for name, document in documents.items():
            (path / name).write_text(json.dumps(document))
    (path / "model.safetensors").touch()
    return path


def said(*words: str, base: list[str] = LAPTOP) -> list[str]:
    return [str(problem) for problem in examine([*base, *words]).problems]


def test_an_objective_with_a_teacher_asks_for_one() -> None:
    assert said("algo=opd") == [
        "algo.teacher.path: algo=opd learns from a teacher, and none is named. "
        "Set algo.teacher.path=<folder>, an HF folder or a checkpoint; a run's export is one."
    ]


@pytest.mark.parametrize("algo", ["algo=grpo", "algo=sft"])
def test_a_teacher_that_nobody_asks_is_refused(algo: str, tmp_path: Path) -> None:
    [line] = said(algo, f"algo.teacher.path={folder_of(tmp_path / 'teacher')}", "eval.path=null")
    assert line.startswith("algo.teacher.path: does nothing without ")


def test_a_teacher_of_the_same_kind_is_accepted(tmp_path: Path) -> None:
    assert said("algo=opd", f"algo.teacher.path={folder_of(tmp_path / 'teacher')}") == []
    saved = tmp_path / "step-000010"
    saved.mkdir()
    (saved / "metadata.json").write_text("{}")
    assert said("algo=opd", f"algo.teacher.path={saved}") == []


def another_vocabulary(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
    vocab = tokenizer["model"]["vocab"]
    first, second = list(vocab)[-2:]
    vocab[first], vocab[second] = vocab[second], vocab[first]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda config, _: config.update(model_type="qwen3"), "is of family 'qwen3', the model of 'glm4'"),
        (lambda config, _: config.update(hidden_size=64), "its hidden_size is 64, the model's 128"),
        (lambda config, _: config.update(vocab_size=4096), "its vocab_size is 4096, the model's "),
        (lambda config, _: config.update(rms_norm_eps=1e-3), "its layernorm_epsilon is 0.001, the model's "),
        (another_vocabulary, "its tokenizer has other tokens than the model's"),
    ],
    ids=["family", "size", "number of tokens", "another function", "other tokens"],
)
def test_another_model_is_no_teacher(change: Any, wanted: str, tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "teacher", change)
    [line] = said("algo=opd", f"algo.teacher.path={folder}")
    assert line.startswith(f"algo.teacher.path={folder}: {wanted}")
    assert line.endswith(SAME)


def test_what_its_function_does_not_depend_on_may_differ(tmp_path: Path) -> None:
    """Another spread of first weights, another length that it was made for, and the same tokens written otherwise."""

    def change(config: dict[str, Any], tokenizer: dict[str, Any]) -> None:
        config["initializer_range"], config["max_position_embeddings"] = 0.5, 4096
        tokenizer["truncation"] = {"direction": "Right", "max_length": 99, "strategy": "LongestFirst", "stride": 0}

    assert said("algo=opd", f"algo.teacher.path={folder_of(tmp_path / 'teacher', change)}") == []


def test_a_folder_that_is_none_is_named_with_its_key(tmp_path: Path) -> None:
    [line] = said("algo=opd", f"algo.teacher.path={tmp_path}/nothing")
    assert line.startswith("algo.teacher.path: there is no ")
    (folder := folder_of(tmp_path / "teacher")).joinpath("model.safetensors").unlink()
    [line] = said("algo=opd", f"algo.teacher.path={folder}")
    assert "there are no *.safetensors files" in line
    (folder / "config.json").write_text("{")
    [line] = said("algo=opd", f"algo.teacher.path={folder}")
    assert line.startswith(f"algo.teacher.path, {folder}/config.json: not JSON")


def test_a_torn_tokenizer_is_named(tmp_path: Path) -> None:
    folder = folder_of(tmp_path / "teacher", lambda _, tokenizer: tokenizer.pop("model"))
    [line] = said("algo=opd", f"algo.teacher.path={folder}")
    assert line.startswith(f"algo.teacher.path, {folder}/tokenizer.json: no tokenizer")


def test_an_estimator_without_advantages_wants_a_teacher() -> None:
    [line] = said("algo.advantage=none", "algo.normalize_std=true")
    assert "algo.advantage=none" in line


def test_a_penalty_in_a_reward_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    words = ("algo=opd", f"algo.teacher.path={folder_of(tmp_path / 'teacher')}", "algo.kl_coef=0.1")
    [line] = said(*words, "algo.kl_in=reward")
    assert "algo.kl_in=reward does nothing with algo.advantage=none" in line
    assert said(*words, "algo.kl_in=loss") == []


def memory_of(*words: str) -> MemoryPlan:
    composed = examine(
        ["+model=glm4-9b-trial", "+cluster=h200x2", "train.megatron.tensor_model_parallel_size=2", *words]
    )
    assert composed.problems == []
    assert isinstance(composed.memory, GpuMemory)
    return composed.memory.plan


def test_the_plan_counts_its_memory_as_the_reference_s(tmp_path: Path) -> None:
    """A set of weights on each host all the time, and the model's own beside it while it is asked."""
    trial = examine(["+model=glm4-9b-trial", "+cluster=h200x2"]).cfg.model
    shutil.copy(resolve(trial.config or trial.path) / "config.json", tmp_path)
    (tmp_path / "model.safetensors").touch()
    words = ("algo=opd", f"algo.teacher.path={tmp_path}")
    [teacher], [reference], [both] = (
        memory_of(*given).hosts for given in (words, ("algo.kl_coef=0.1",), (*words, "algo.kl_coef=0.1"))
    )
    assert teacher.table.rows["teacher"] == reference.table.rows["reference"]
    weights = 2 * memory_of().trainers[0].weights
    assert teacher.table.rows["teacher"][Phase.train] == weights
    assert teacher.table.rows["teacher"][Phase.logprobs] == 2 * weights
    held = sum(both.table.rows[name][Phase.logprobs] for name in ("teacher", "reference"))
    assert held == 3 * weights, "the model's own are out once"
    assert memory_of(*words).trainers[0].computes_logprobs
