"""Runs of one model and cluster that learn otherwise have directories of their own."""

import pytest

from slime.compose.compose import compose, examine

BASE = ["+model=glm4-tiny", "+cluster=local"]


def name(*words):
    return examine([*BASE, *words]).cfg.run.name


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "glm4-tiny-local"),
        (["train.optimizer.lr=1e-3"], "glm4-tiny-local-optimizer.lr_0.001"),
        (["algo=ppo", "run.seed=7"], "glm4-tiny-local-ppo-seed_7"),
        (["task=calculator"], "glm4-tiny-local-calculator"),
        (["task=arithmetic"], "glm4-tiny-local"),  # the model's own
        (["run.num_steps=7", "eval.interval=2", "observe.samples_mb=3", "cluster.hang_timeout_s=9"], "glm4-tiny-local"),
        (["run.name=mine", "algo=ppo"], "mine"),
        (["rollout.surplus=drop"], "glm4-tiny-local-surplus_drop"),
    ],
)
def test_the_keys_that_decide_what_is_learned_are_in_the_name(words, expected):
    assert name(*words) == expected


def test_the_order_of_the_words_does_not_matter():
    assert name("algo=ppo", "run.seed=7") == name("run.seed=7", "algo=ppo")
    assert name("train.optimizer.lr=1e-3") == name("train.optimizer.lr=0.001")


def test_files_of_one_name_are_two_runs():
    one, other = name("data.path=a/rows.jsonl"), name("data.path=b/rows.jsonl")
    assert one != other
    assert one.startswith("glm4-tiny-local-data.path_rows-")


def test_a_long_name_is_cut_and_stays_its_own():
    many = [f"algo.{key}" for key in ("clip_low=0.1", "clip_high=0.3", "kl_coef=0.01", "entropy_coef=0.001")]
    names = {name(*many), name(*many, "run.seed=7"), name(*many, "run.seed=8")}
    assert len(names) == 3
    assert all(len(each) <= 100 for each in names)


def test_a_name_is_one_that_a_folder_may_have():
    odd = "rollout.program.command='python \"a b\".py --x=1'"
    assert compose([*BASE, "run.name=x"]).run.name == "x"
    found = examine([*BASE, odd])
    assert not [problem for problem in found.problems if problem.where == "run.name"]
