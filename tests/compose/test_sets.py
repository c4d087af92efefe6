"""Named sets of prompts: composed, checked and shown before anything starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from slime import command
from slime.compose.compose import compose, examine
from slime.config.keys import own_keys

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
AIME = "eval.sets.aime-2024"


@pytest.fixture
def sets(tmp_path: Path) -> dict[str, str]:
    """Rows of two sets with columns of their own: `ours`, and AIME 2024 as Hugging Face H4 publishes it."""
    ours, aime = tmp_path / "ours.jsonl", tmp_path / "aime_2024/data/train-00000-of-00001.parquet"
    ours.write_text("".join(json.dumps({"question": f"{n}+1=", "answer": str(n + 1)}) + "\n" for n in range(3)))
    aime.parent.mkdir(parents=True)
    rows = [{"id": 60, "problem": "1+1=", "solution": "2", "answer": "204", "url": "-", "year": "2024"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), aime)
    return {"ours": str(ours), "aime": str(aime.parent)}


def words(sets: dict[str, str], *more: str) -> list[str]:
    train = [f"data.sets.ours.path={sets['ours']}", "data.sets.ours.prompt_key=question", "data.sets.ours.share=0.25"]
    train += ["data.sets.ours.label_key=answer", "data.sets.ours.reward=f1", "data.sets.ours.program=single"]
    held_out = [f"{AIME}.path={sets['aime']}", f"{AIME}.prompt_key=problem", f"{AIME}.label_key=answer"]
    held_out += [f"{AIME}.system_prompt='Add.'", f"{AIME}.samples_per_prompt=4", f"{AIME}.sampling.temperature=0.6"]
    return [*LAPTOP, *train, *held_out, *more]


def test_a_set_follows_the_run_but_where_it_says_otherwise(sets: dict[str, str]) -> None:
    cfg = compose(words(sets))
    ours, aime = cfg.data.sets["ours"], cfg.eval.sets["aime-2024"]
    assert (ours.prompt_key, ours.share, ours.reward, ours.program) == ("question", 0.25, "f1", "single")
    assert (aime.samples_per_prompt, aime.sampling.temperature, aime.system_prompt) == (4, 0.6, "Add.")
    assert aime.sampling.max_response_tokens == cfg.eval.sampling.max_response_tokens == 16
    assert aime.pass_threshold == cfg.eval.pass_threshold
    assert (cfg.eval.samples_per_prompt, cfg.eval.sampling.temperature) == (1, 0.0)


def test_the_plan_shows_them(sets: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["plan", "--all", *words(sets)]) == 0, capsys.readouterr().err
    shown = capsys.readouterr().out
    assert f"set ours    share 0.25 to 1, prompts from {sets['ours']}, reward f1, program single" in shown
    assert f"eval aime-2024 4 samples a prompt of {sets['aime']} at temperature 0.6" in shown
    assert "reward.data.sets.ours f1 (slime-rewards" in shown


def test_one_set_shows_nothing_of_sets(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["plan", "--all", *LAPTOP]) == 0
    shown = capsys.readouterr().out
    assert "data.share" not in shown
    assert ".sets" not in shown


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("data.sets.ours.reward=f2", "data.sets.ours.reward: no reward named 'f2' is installed"),
        ("data.sets.ours.reward_options.x=1", "data.sets.ours.reward_options.x: reward 'f1' has no such option"),
        (f"{AIME}.program_options.x=1", f"{AIME}.program_options: does nothing without {AIME}.program"),
        ("data.sets.ours.share=0", "data.sets.ours.share: must be above 0"),
        ("data.sets.ours.prompt_key=qestion", "the row has no key 'qestion'. Did you mean 'question'?"),
        (f"{AIME}.sampling.temperature=0", f"{AIME}.samples_per_prompt: is 4, but at {AIME}.sampling.temperature=0"),
        (f"{AIME}.sampling.max_sequence_tokens=8", f"{AIME}.sampling.max_sequence_tokens: is 8, but a prompt alone"),
        ("data.sets.Main.path=x.jsonl", "data.sets.Main: 'Main' cannot be the name of a set"),
        (
            "data.sets.new.path=nobody/knows",
            "data.sets.new.path: there is no 'nobody/knows'. A data set of the Hugging",
        ),
        ("eval.path=null", "eval.sets: does nothing without eval.path"),
    ],
)
def test_what_is_wrong_with_a_set_is_named(sets: dict[str, str], word: str, says: str) -> None:
    problems = [str(problem) for problem in examine(words(sets, word)).problems]
    assert any(says in problem for problem in problems), problems


@pytest.mark.parametrize("key", [key.name for key in own_keys().values() if key.bound and ".sets." in key.name])
@pytest.mark.parametrize("value", [-(10**7), 10**15])
def test_every_number_of_a_set_is_refused_outside_its_bounds(sets: dict[str, str], key: str, value: int) -> None:
    named = key.replace("<name>", "ours" if key.startswith("data.") else "aime-2024")
    problems = [str(problem) for problem in examine(words(sets, f"{named}={value}")).problems]
    assert len(problems) == 1
    assert problems[0].startswith(f"{named}: must be ")


def test_a_held_out_set_is_not_trained_on(sets: dict[str, str]) -> None:
    both = f"eval.sets.again.path={sets['ours']}"
    keys = ["eval.sets.again.prompt_key=question", "eval.sets.again.label_key=answer"]
    problems = [str(problem) for problem in examine(words(sets, both, *keys)).problems]
    assert any(each.startswith("data.sets.ours.path, eval.sets.again.path: both read") for each in problems), problems


PUBLISHED: list[tuple[str, str, dict[str, Any]]] = [
    ("dapo-math-17k.parquet", "data", {"data_source": "math_dapo", "ability": "MATH", "extra_info": {"index": "9a9b"}}),
    ("aime-2024.parquet", "eval", {"data_source": "aime", "ability": "MATH", "extra_info": {"index": 0}}),
]


def test_dapo_math_and_aime_are_read_as_published(tmp_path: Path, sets: dict[str, str]) -> None:
    """The columns of BytedTsinghua-SIA: a message that asks for a last line, the label inside reward_model."""
    argv = [*LAPTOP, "task=dapo-math-17k", "algo.kl_coef=null", "rollout.max_prompt_tokens=128"]
    for file, section, rest in PUBLISHED:
        label = {"reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"}}
        row = {"prompt": [{"role": "user", "content": "Answer: 17+17="}], **label, **rest}
        parquet.write_table(pyarrow.Table.from_pylist([row]), tmp_path / file)
        argv.append(f"{section}.path={tmp_path / file}")
    argv += ["eval.sampling.max_response_tokens=64", "rollout.sampling.max_response_tokens=64"]
    argv += [f"{AIME}.path={sets['aime']}", f"{AIME}.prompt_key=problem", f"{AIME}.label_key=answer"]
    cfg = examine(argv).cfg
    problems = [str(problem) for problem in examine(argv).problems]
    assert not [problem for problem in problems if "row" in problem or "data." in problem or "eval." in problem], (
        problems
    )
    assert (cfg.reward.name, cfg.data.label_key) == ("dapo", "reward_model.ground_truth")
