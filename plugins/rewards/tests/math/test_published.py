"""The layout in which DAPO-math-17k and AIME 2024 are published, with rows of our own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from slime.compose.compose import Composed, examine
from slime.config.paths import resolve
from slime.data.prompts import PromptSet
from slime.data.tokenize import load_tokenizer
from slime.run_data import Data
from slime_rewards.math.rewards import DapoReward
from slime_testing.plugins import sample

SMALL = [
    "rollout.max_prompt_tokens=400",
    "rollout.sampling.max_response_tokens=64",
    "eval.sampling.max_response_tokens=64",
]
ASKED = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem.\n\nWhat is {}?\n\n"
    'Remember to put your answer on its own line after "Answer:".'
)


def row(index: int, problem: str, answer: str, source: str) -> dict[str, Any]:
    return {
        "data_source": source,
        "prompt": [{"content": ASKED.format(problem), "role": "user"}],
        "ability": "MATH",
        "reward_model": {"ground_truth": answer, "style": "rule-lighteval/MATH_v2"},
        "extra_info": {"index": f"row-{index}"},
    }


def composed(folder: Path, label_key: str = "reward_model.ground_truth", copies: int = 1) -> Composed:
    for name, source in (("dapo-math-17k", "math_dapo"), ("aime-2024", "math_dapo_aime")):
        rows = [row(index, f"{index} + {index} in {name}", str(2 * index), source) for index in range(4)]
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows * copies), folder / f"{name}.parquet")
    paths = [f"data.path={folder}/dapo-math-17k.parquet", f"eval.path={folder}/aime-2024.parquet"]
    keys = ["task=dapo-math-17k", f"data.label_key={label_key}", *paths, *SMALL]
    return examine(["+model=glm4-tiny", "+cluster=local", *keys])


def test_both_sets_plan_and_load_as_published(tmp_path: Path) -> None:
    cfg = composed(tmp_path).cfg
    assert [
        problem for problem in composed(tmp_path).problems if "data" in str(problem) or "eval" in str(problem)
    ] == []
    tokenizer = load_tokenizer(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"))
    for path in (cfg.data.path, str(cfg.eval.path)):
        prompts = PromptSet(cfg.data, Path(path), tokenizer, 2048)
        prompt = prompts.prompt(3, 0)
        assert prompt.label == "6"
        assert prompt.metadata["data_source"].startswith("math_dapo")
        assert prompt.metadata["extra_info"] == {"index": "row-3"}
        verdict = DapoReward().score(sample("3 + 3 is 6.\nAnswer: $6$", prompt.label))
        assert verdict.value == 1.0


def test_published_rows_that_stand_a_hundred_times_are_taken_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """DAPO-math-17k holds its 17,398 prompts in 1,791,700 rows, AIME 2024 its 30 in 960."""
    cfg = composed(tmp_path, copies=100).cfg
    tokenizer = load_tokenizer(resolve("pkg://slime_plugin_glm4/assets/glm4-tiny"))
    data = Data(cfg, tokenizer)
    assert str(data) == "4 prompts, 4 held-out prompts"
    assert data.prompts is not None
    assert sorted(prompt.id for prompt in data.prompts.take(4)) == ["0/1", "0/2", "0/3", "0/4"]
    (left_out,) = {text.partition(": ")[2] for text in caplog.messages if ".parquet" in text}
    assert left_out == "396 of 400 rows left out (prompt and label of an earlier one)"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("reward_model.ground_trut", "no key 'reward_model.ground_trut'. Did you mean 'ground_truth'"),
        ("reward_mode.ground_truth", "no key 'reward_mode.ground_truth'"),
        ("reward_model", "'reward_model' is an object in"),
    ],
)
def test_a_wrong_label_key_is_told_before_the_run(tmp_path: Path, key: str, words: str) -> None:
    assert any(words in str(problem) for problem in composed(tmp_path, key).problems)
