"""The rate that a starter's task is learnt at: 1e-6 as everywhere, 5e-6 by a model below 1 B parameters."""

from __future__ import annotations

import re

import pytest

from slime.compose.compose import merge
from slime.compose.groups import scan
from slime.compose.overrides import add_choices_of_model, read_command_line
from slime.config.schema import SlimeConfig
from slime.plugins import load

GROUPS = scan(load())
TASKS = ("gsm8k", "countdown", "word-problems", "word-problems-worked", "reverse-text", "gym", "calculator-large")
SIZE = re.compile(r"(?<![\da-z.])([\d.]+)(m|b)(?![a-z0-9])")
"""In a published name, millions or billions of parameters."""
PUBLISHED = [name for name in GROUPS.names("model") if not name.endswith(("-tiny", "-trial"))]


def composed(*words: str) -> SlimeConfig:
    line = read_command_line(words, GROUPS)
    add_choices_of_model(line, GROUPS)
    return merge(line, GROUPS)[1]


def rate(*words: str) -> float:
    return float(composed(*words).train.optimizer["lr"])


def is_small(model: str) -> bool:
    """By its name; one without a size there has 355 B parameters and more, or is of 30 B."""
    found = SIZE.search(model)
    return found is not None and (found[2] == "m" or float(found[1]) < 1)


def test_five_published_models_are_small() -> None:
    assert {name for name in PUBLISHED if is_small(name)} == {
        "gemma3-270m",
        "qwen2.5-0.5b",
        "qwen2.5-coder-0.5b",
        "smollm2-135m",
        "smollm2-360m",
    }


@pytest.mark.parametrize(("place", "model"), [*enumerate(PUBLISHED)])
def test_each_model_learns_a_starters_task_at_the_rate_of_its_size(place: int, model: str) -> None:
    """One task each, in turn; the rate does not depend on it."""
    words = [f"+model={model}", "+cluster=h100x16", f"task={TASKS[place % len(TASKS)]}", "recipe=none"]
    assert rate(*words) == (5e-6 if is_small(model) else 1e-6)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("model", "wanted"), [("qwen2.5-7b", 1e-6), ("smollm2-360m", 5e-6)])
def test_each_starters_task_takes_the_rate_of_the_model(task: str, model: str, wanted: float) -> None:
    assert rate(f"+model={model}", "+cluster=h100x8", f"task={task}") == wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["+model=smollm2-360m", "+cluster=local", "task=dapo-math"], 1e-6),
        (["+model=smollm2-360m", "+cluster=local", "task=arithmetic"], 2e-4),
        (["+model=smollm2-360m", "+cluster=local", "task=sums"], 2e-4),
        (["+model=smollm2-135m", "+cluster=h100x1"], 2e-5),
        (["+model=smollm2-135m", "+cluster=h100x1", "recipe=none"], 5e-6),
        (["+model=smollm2-135m", "+cluster=local", "train.optimizer.lr=3e-6"], 3e-6),
        (["+model=qwen2.5-7b", "+cluster=h100x8", "train.optimizer.lr=3e-6"], 3e-6),
        (["+model=qwen2.5-0.5b", "+cluster=h100x1"], 5e-6),
        (["+model=llama3.1-8b", "+cluster=h100x1"], 1e-6),
    ],
)
def test_rates_of_tasks_recipes_and_the_command_line_win(words: list[str], wanted: float) -> None:
    assert rate(*words) == wanted


def test_a_small_model_has_its_task_and_its_section() -> None:
    cfg = composed("+model=qwen2.5-coder-0.5b", "+cluster=local")
    assert (cfg.model.family, cfg.model.task) == ("qwen2", "countdown")
    assert cfg.data.path.endswith("countdown-train.jsonl")
    assert cfg.train.optimizer["weight_decay"] == 0


@pytest.mark.parametrize("model", ["glm4.5", "qwen2.5-7b", "smollm2-135m"])
@pytest.mark.parametrize(
    ("algo", "bounds"),
    [("grpo", (0.2, 0.28)), ("gspo", (3e-4, 4e-4)), ("cispo", (0.2, 2.0)), ("ppo", (0.2, 0.2))],
)
def test_an_algorithm_has_its_published_bounds(model: str, algo: str, bounds: tuple[float, float]) -> None:
    found = composed(f"+model={model}", "+cluster=h100x64", f"algo={algo}").algo
    assert (found.clip_low, found.clip_high) == bounds


def test_a_starters_task_leaves_the_mean_of_the_loss_to_the_algorithm() -> None:
    words = ["+model=qwen2.5-7b", "+cluster=h100x8"]
    means = {algo: composed(*words, f"algo={algo}").algo.loss_mean.name for algo in ("grpo", "gspo", "dr_grpo")}
    assert means == {"grpo": "token", "gspo": "sample", "dr_grpo": "constant"}


@pytest.mark.parametrize("task", ["dapo-math", "dapo-math-17k", "dapo-math-boxed"])
def test_dapo_math_has_the_mean_of_its_scripts_unless_an_algorithm_is_chosen(task: str) -> None:
    words = ["+model=glm4-9b", "+cluster=h100x8", f"task={task}"]
    chosen = [[], *([f"algo={name}"] for name in ("dapo", "ppo", "gspo", "dr_grpo")), ["algo.loss_mean=token"]]
    means = [composed(*words, *more).algo.loss_mean.name for more in chosen]
    assert means == ["sample", "token", "token", "sample", "constant", "token"]
