"""Generators of reasoning-gym as prompts, held-out prompts, demonstrations and verdicts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import slime_agents.gym
from slime import plugins
from slime.compose.compose import compose
from slime.config.paths import exists, resolve_rows
from slime.errors import SlimeError
from slime.observe.metrics import HELD_OUT
from slime.types import Prompt, Sample, VerdictKind
from slime_agents.gym.options import ReasoningGymOptions
from slime_agents.gym.verdicts import ReasoningGymReward
from slime_observers.samples.rows import read_samples
from tests.running import Run

TASKS = Path(slime_agents.gym.__file__).parent / "conf/task"
SUMS = "reasoning-gym://chain_sum/min_terms:2/max_terms:2/min_digits:1/max_digits:1"


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory):
    plugins.load()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def rows(address: str) -> list[dict]:
    return [json.loads(line) for line in resolve_rows(address).read_text().splitlines()]


def test_no_held_out_question_is_trained_on_whatever_the_seeds():
    held_out = {row["prompt"] for row in rows(f"{SUMS}/heldout/size:20")}
    assert len(held_out) == 20
    for seed in (0, 3):
        trained = [row["prompt"] for row in rows(f"{SUMS}/size:150/seed:{seed}")]
        assert len(set(trained)) == 150
        assert not held_out & set(trained)


def test_the_same_address_has_the_same_bytes_and_another_seed_others(tmp_path, monkeypatch):
    addresses = ["reasoning-gym://isomorphic_strings/size:10", "reasoning-gym://countdown/size:10"]
    first = [resolve_rows(address).read_bytes() for address in addresses]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONHASHSEED", "17")
    assert [resolve_rows(address).read_bytes() for address in addresses] == first, "made again, by other hashes"
    assert resolve_rows(f"{addresses[1]}/seed:1").read_bytes() != first[1]


def test_the_generator_judges_its_rows():
    rewards = {tag: ReasoningGymReward(ReasoningGymOptions(tag)) for tag in ("answer", None)}
    for row in rows("reasoning-gym://countdown/size:5"):
        prompt = Prompt("0/1", (), (), row["label"], {key: row[key] for key in ("generator", "metadata")})

        def verdict(tag, response, prompt=prompt):
            return rewards[tag].score(Sample(prompt, 0, response=response))

        assert verdict("answer", f"I think <answer>1</answer>, no: <answer> {row['label']} </answer>").value == 1
        assert verdict("answer", "<answer>1 + 1</answer>").value < 1
        assert verdict("answer", row["label"]).value == 0, "it was asked for the tags"
        assert verdict(None, f"well</think>{row['label']}").value == 1
    assert rewards[None].score(Sample(Prompt("0/1", (), (), "1"), 0, response="1")).kind is VerdictKind.ERROR


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("reasoning-gym://contdown", r"no generator 'contdown'\. Did you mean 'countdown'"),
        ("reasoning-gym://countdown/min_nmbers:3", r"no option 'min_nmbers'\. Did you mean 'min_numbers'"),
        ("reasoning-gym://countdown/min_numbers:0", "min_numbers must be greater than 1"),
        ("reasoning-gym://countdown/held-out", "'held-out' is no part of an address"),
        ("reasoning-gym://countdown/size:0", "size is 0, not a number from 1 to 100000"),
        ("reasoning-gym://countdown/seed:5000", "seed is 5000, not a number from 0 to 4000"),
        ("reasoning-gym://arc_agi/size:1", "judges by what cannot be written as JSON"),
        (f"{SUMS}/size:300", r"has 1\d\d questions for this part in 16000 draws, not 300"),
        ("resoning-gym://countdown", r"no plugin is installed for 'resoning-gym://'\. Did you mean 'reasoning-gym'"),
    ],
)
def test_a_wrong_address_is_one_line(address, what):
    assert not exists(address)
    with pytest.raises(SlimeError, match=what) as error:
        resolve_rows(address)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sums", "gym"])
def test_the_tasks_are_planned(task):
    words = ["+model=glm4-tiny", "+cluster=local", f"task={task}"]
    if task == "gym":  # for other models than the tiny one, whose tokens are letters
        sets = OmegaConf.load(TASKS / "gym.yaml")
        fewer = [f"{name}.path={sets[name].path}/size:20" for name in ("data", "eval")]  # of 1,256, a minute's work
        words += [*fewer, "rollout.max_prompt_tokens=470", "rollout.sampling.max_response_tokens=32"]
        words.append("data.skip_long_prompts=true")
    assert compose(words).reward.name == "reasoning-gym"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_laptop_run_is_judged_by_the_generator(tmp_path):
    """Demonstrations, prompts and held-out prompts by address, and rewards that are right: real, from start to end."""
    words = {
        "task": "sums",
        "sft.num_steps": 60,
        "run.num_steps": 2,
        "eval.interval": 2,
        "train.checkpoint.interval": 2,
    }
    run = Run(tmp_path, shortened=words, forked=True).start().succeed()
    assert [row["step"] for row in run.rows("rl") if HELD_OUT in row][-1] == 2
    samples = read_samples(run.path / "samples/step-000002.jsonl")
    assert len(samples) == 32 * 8
    assert all(0 <= row["reward"] <= 1 for row in samples)
    assert all((row["reward"] == 1) == (row["response"].strip() == row["label"]) for row in samples)
