"""Keys that do nothing in the composed run are refused, with what would make them act."""

from typing import Any

import pytest

from slime.compose.check import SGLANG_BOUNDS
from slime.compose.compose import examine
from slime.compose.idle import rules
from slime.config.keys import own_keys
from tests.site import Site

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
PLAIN = [*LAPTOP, "task=none", "reward=arithmetic", "data.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl"]
PLAIN += ["run.num_steps=40", "rollout.max_prompt_tokens=32", "rollout.sampling.max_response_tokens=16"]
HELD_OUT = "eval.path=pkg://slime_rewards.math/data/arithmetic-heldout.jsonl"
AGENT = ["rollout.program.name=endpoint", "rollout.program.options.command=cat"]
DEMONSTRATIONS = ["sft.path=pkg://slime_rewards.math/data/arithmetic-sft.jsonl", "sft.num_steps=100"]

CLIPPED = {"algo.importance_low": 0.5, "algo.importance_high": 1.5}
MASKED = {"algo.importance": "mask"}
OVER = {"rollout.over_sampling": 1.5}
ON_POLICY = {"rollout.surplus": "drop"}
OLD = {"algo.rollout_logprobs_as_old": "true"}
NO_STALE = (
    "does nothing without algo.importance_tokens=all, rollout.over_sampling above 1 or rollout.max_staleness. Set"
)


def refused(words: list[str]) -> dict[str, str]:
    """Key -> what is missing, of a line that has no other fault."""
    problems = examine(words).problems
    assert all(problem.what.startswith("does nothing without ") for problem in problems), problems
    return {problem.where: problem.what.removeprefix("does nothing without ") for problem in problems}


ABOVE_ONE = "train.steps_per_rollout or train.epochs_per_rollout above 1"
K2 = "algo.kl_estimator=k2 is multiplied with a ratio of 1"
BESIDE = {
    "algo.options.tau_positive": ["algo=sapo"],
    "algo.options.tau_negative": ["algo=sapo"],
    "algo.advantage_options.value_clip": ["algo=ppo"],
    "algo.kl_unbiased": ["algo.kl_coef=0.1", "algo.kl_estimator=k2"],
}
"""What stands beside a word, without which it would be another mistake."""


@pytest.mark.parametrize(
    ("word", "condition", "mended"),
    [
        ("weights.full_every=5", "weights.transport=disk", ["weights.transport=disk"]),
        ("weights.path=/x", "weights.transport=disk", ["weights.transport=disk"]),
        ("train.lr_decay_steps=5", "train.lr_decay=linear or cosine", ["train.lr_decay=linear"]),
        ("algo.kl_estimator=k2", "algo.kl_coef", ["algo.kl_coef=0.1"]),
        (
            "algo.clip_high=0.3",
            ABOVE_ONE,
            ["train.steps_per_rollout=2"],
        ),
        ("algo.clip_high=0.3", ABOVE_ONE, ["train.epochs_per_rollout=2"]),
        ("algo.clip_low=0.1", ABOVE_ONE, ["algo.rollout_logprobs_as_old=true"]),
        ("algo.options.tau_positive=2", ABOVE_ONE, ["train.epochs_per_rollout=2"]),
        ("algo.options.tau_negative=2", ABOVE_ONE, ["algo.rollout_logprobs_as_old=true"]),
        ("algo.advantage_options.value_clip=0.1", ABOVE_ONE, ["train.steps_per_rollout=2"]),
        ("algo.advantage_options.value_clip=null", ABOVE_ONE, ["train.epochs_per_rollout=2"]),
        ("algo.kl_unbiased=true", f"{ABOVE_ONE}, because {K2}", ["train.steps_per_rollout=2"]),
        ("algo.kl_unbiased=true", f"{ABOVE_ONE}, because {K2}", ["algo.kl_estimator=k3"]),
        ("sft.lr=5e-5", "sft.path and sft.num_steps", DEMONSTRATIONS),
        (DEMONSTRATIONS[0], "sft.num_steps", DEMONSTRATIONS[1:]),
        ("eval.interval=1", "eval.path", [HELD_OUT]),
        ("eval.sampling.max_response_tokens=8", "eval.path", [HELD_OUT]),
        ("train.checkpoint.keep=3", "train.checkpoint.interval", ["train.checkpoint.interval=5"]),
        ("buffer.options.max_groups=9", "rollout.over_sampling above 1", ["rollout.over_sampling=2"]),
    ],
)
def test_a_key_without_effect_is_refused_until_it_acts(word: str, condition: str, mended: list[str]) -> None:
    base = [*PLAIN, *BESIDE.get(word.partition("=")[0], []), "train.checkpoint.interval=null", word]
    key = word.partition("=")[0].replace("options.max_groups", "options")
    assert refused(base) == {key: condition}
    assert refused([*base, *mended]) == {}


@pytest.mark.parametrize(
    ("words", "is_idle"),
    [
        (["train.share_prompts=true"], True),
        (["train.share_prompts=false"], False),
        (["train.share_prompts=true", "rollout.samples_per_prompt=2"], False),
        (["train.share_prompts=true", *DEMONSTRATIONS], False),  # which may have one prompt
        (["train.share_prompts=true", *AGENT], False),  # an attempt has several segments
    ],
)
def test_one_sample_a_prompt_shares_it_with_none(words: list[str], is_idle: bool) -> None:
    found = refused([*PLAIN, "algo=ppo", "rollout.samples_per_prompt=1", *words])
    assert found == ({"train.share_prompts": "rollout.samples_per_prompt above 1"} if is_idle else {})


@pytest.mark.parametrize(
    "words",
    [
        ["algo=sapo", "algo.options.tau_positive=1.0"],
        ["algo=ppo", "algo.advantage_options.value_clip=0.2"],
        ["algo=ppo"],
        ["algo=sapo", "algo.advantage=gae"],
    ],
)
def test_an_option_that_has_its_default_is_no_mistake_where_it_is_idle(words: list[str]) -> None:
    assert not examine([*LAPTOP, *words]).problems


DECLARING = """
from dataclasses import dataclass
from slime.objective import Column, LossTerms, Metrics, TrainsOn

@dataclass(frozen=True)
class Slow:
    warm: int = 0
    bound: float = 1.0
    min_samples = 1
    trains_on, needs = TrainsOn.rollouts, (Column("advantages"),)

    def idle_options(self, train):
        return {"bound": "without train.lr_warmup_steps"} if train.lr_warmup_steps == 0 else {}

    def metrics(self, columns):
        return Metrics(("loss",))

    def loss(self, scores, inputs):
        loss = inputs.weighted(-scores[0] * inputs.columns["advantages"])
        return LossTerms(loss, {"loss": loss})

    def advantages(self, groups):
        return [[attempt.reward for attempt in group] for group in groups]

@hookimpl
def slime_objectives():
    return {"slow": Slow}

@hookimpl
def slime_estimators():
    return {"slow": Slow}
"""


@pytest.mark.parametrize(("choice", "home"), [("algo", "algo.options"), ("algo.advantage", "algo.advantage_options")])
def test_a_plugin_says_when_its_options_are_idle(site: Site, choice: str, home: str) -> None:
    site.add("slime-slow", DECLARING)
    chosen = [*LAPTOP, f"{choice}=slow"]
    assert refused([*chosen, f"{home}.bound=2"]) == {f"{home}.bound": "train.lr_warmup_steps"}
    for words in ([], [f"{home}.warm=3"], [f"{home}.bound=1.0"], [f"{home}.bound=2", "train.lr_warmup_steps=1"]):
        assert refused([*chosen, *words]) == {}


def test_an_objective_of_demonstrations_says_it_too(site: Site) -> None:
    site.add(
        "slime-slow", DECLARING.replace('TrainsOn.rollouts, (Column("advantages"),)', "TrainsOn.demonstrations, ()")
    )
    chosen = [*LAPTOP, "algo=slow", "eval.path=null"]
    assert refused([*chosen, "algo.options.bound=2"]) == {"algo.options.bound": "train.lr_warmup_steps"}
    assert refused([*chosen, "algo.options.warm=3"]) == {}


def test_a_supervised_run_takes_no_keys_of_reinforcement() -> None:
    words = ["algo.kl_coef=1", "run.num_steps=5", "train.optimizer.lr=1e-3", "rollout.prompts_per_step=4"]
    words += ["rollout.fp8=block", "weights.bucket_mb=9", "observe.zero_variance_steps=9"]
    alone = refused([*LAPTOP, "algo=sft", "eval.path=null", *words])
    assert {key: condition.partition(" (")[0] for key, condition in alone.items()} == {
        "algo.kl_coef": "algo=grpo",
        "run.num_steps": "algo=grpo",
        "train.optimizer.lr": "algo=grpo",
        "rollout.prompts_per_step": "algo=grpo",
        "observe.zero_variance_steps": "algo=grpo",
        "rollout.fp8": "eval.path",
        "weights.bucket_mb": "eval.path",
    }


def test_greedy_evaluation_takes_no_nucleus() -> None:
    assert refused([*LAPTOP, "eval.sampling.top_p=0.5"]) == {"eval.sampling.top_p": "eval.sampling.temperature above 0"}


@pytest.mark.parametrize(
    "words",
    [
        ["eval.path=null"],
        ["algo=sft"],
        ["algo=sft", "eval.path=null"],
        ["sft.num_steps=0"],
        ["weights.full_every=20", "algo.kl_estimator=low_var_kl"],
    ],
)
def test_what_a_file_sets_may_be_switched_off_above_it_and_a_default_may_be_named(words: list[str]) -> None:
    assert refused([*LAPTOP, *words]) == {}


def test_a_key_that_is_set_where_its_condition_is_switched_off_is_refused() -> None:
    assert refused([*LAPTOP, "eval.path=null", "eval.interval=3"]) == {"eval.interval": "eval.path"}


def test_every_rule_names_keys_that_exist() -> None:
    from fnmatch import fnmatch

    patterns = [pattern for rule in rules() for pattern in rule.keys.split()]
    foreign = [pattern for pattern in patterns if not any(fnmatch(key, pattern) for key in own_keys())]
    of_sglang = [f"rollout.sglang.{size}" for size in SGLANG_BOUNDS]
    assert foreign == ["train.optimizer.lr", "train.optimizer.min_lr", *of_sglang]


def problems(changes: dict[str, Any], model: str = "glm4-tiny") -> list[str]:
    argv = [f"+model={model}", "+cluster=local", *(f"{key}={value}" for key, value in changes.items())]
    if model == "glm4-moe-tiny":
        sizes = ["rollout.max_prompt_tokens=32", "rollout.sampling.max_response_tokens=16"]
        rows = "data.path=pkg://slime_rewards.math/data/arithmetic-train.jsonl"
        argv += ["reward=arithmetic", "run.num_steps=1", rows, *sizes]
    return [str(problem) for problem in examine(argv).problems]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (MASKED, [f"algo.importance: {NO_STALE}"]),
        (CLIPPED, [f"algo.importance_low: {NO_STALE}", f"algo.importance_high: {NO_STALE}"]),
        (
            CLIPPED | OVER | ON_POLICY,
            [f"algo.importance_{end}: {NO_STALE}" for end in ("low", "high")],
        ),
        ({"rollout.max_weight_lag": 2}, ["rollout.max_weight_lag: does nothing without rollout.over_sampling above 1"]),
        ({"rollout.max_weight_lag": "null"}, ["max_weight_lag: does nothing without rollout.over_sampling above 1"]),
        ({"rollout.surplus": "drop"}, ["rollout.surplus: does nothing without rollout.over_sampling above 1. Set"]),
        ({"rollout.fixed_prompts": "true"}, ["rollout.fixed_prompts: does nothing without rollout.over_sampling"]),
        (
            OVER | ON_POLICY | {"rollout.max_weight_lag": 2},
            ["max_weight_lag: does nothing with rollout.surplus=drop, which leaves no token"],
        ),
        (OLD | MASKED, ["algo.importance: does nothing with algo.rollout_logprobs_as_old, whose ratio"]),
        (OLD | {"algo.importance_tokens": "all"}, ["algo.importance_tokens: does nothing with algo.rollout_logprobs"]),
    ],
)
def test_what_acts_on_nothing_is_refused_with_what_would_make_it_act(changes: dict[str, Any], says: list[str]) -> None:
    found = problems(changes)
    assert len(found) == len(says), found
    for problem, start in zip(found, says, strict=True):
        assert start in problem


@pytest.mark.parametrize(
    "changes",
    [
        CLIPPED | MASKED | OVER | {"rollout.max_weight_lag": 2},
        CLIPPED | MASKED | {"algo.importance_tokens": "all"},
        OVER | {"rollout.surplus": "finished", "rollout.max_weight_lag": 2},
        OVER | ON_POLICY,
        {"rollout.max_weight_lag": 4},
        {"algo.importance_tokens": "stale"},
        OLD,
    ],
)
def test_what_acts_is_accepted(changes: dict[str, Any]) -> None:
    assert problems(changes) == []


def test_a_mixture_of_experts_corrects_all_tokens_unless_told_otherwise() -> None:
    assert problems(CLIPPED, "glm4-moe-tiny") == []
    stale = problems(CLIPPED | {"algo.importance_tokens": "stale"}, "glm4-moe-tiny")
    assert [NO_STALE in problem for problem in stale] == [True, True]


def test_an_algorithm_s_own_bounds_are_no_mistake_where_they_never_act() -> None:
    """The file of `gspo` sets them; one optimizer step a rollout clips nothing."""
    assert not examine([*LAPTOP, "algo=gspo"]).problems
    (problem,) = examine([*LAPTOP, "algo=gspo", "algo.clip_low=0.01"]).problems
    assert problem.where == "algo.clip_low"


@pytest.mark.parametrize("other", ["cluster.ray_address=10.0.0.1:6379", "cluster.hostfile=hosts"])
def test_a_grace_for_drivers_is_refused_where_others_have_started_what_would_stay(other: str) -> None:
    words = ["+model=glm4-tiny", "+cluster=local", "cluster.driver_grace_s=60"]
    told = [problem for problem in examine([*words, other]).problems if problem.where == "cluster.driver_grace_s"]
    assert [problem.what.partition(":")[0] for problem in told] == [
        "does nothing with other hosts, or a Ray that was there before"
    ]
    assert examine(words).problems == []


PIPELINE = "train.megatron.pipeline_model_parallel_size"
HOSTS = ["cluster.num_nodes=2", "cluster.num_trainers=2", "cluster.hostfile=hosts"]


@pytest.mark.parametrize(
    ("word", "others", "mended"),
    [
        ("train.checkpoint.in_memory_every=1", ["train.restarts=0"], "train.restarts=1"),
        ("train.restart_window_s=60", ["train.restarts=0"], "train.restarts=1"),
        ("cluster.min_hosts=1", [*HOSTS, "train.restarts=0"], "train.restarts=1"),
        ("cluster.min_hosts=2", HOSTS, "cluster.min_hosts=1"),
        ("cluster.min_hosts=1", [*HOSTS, "rollout.engines.default.devices=2"], "rollout.engines.default.devices=1"),
        ("cluster.min_hosts=1", [*HOSTS, f"{PIPELINE}=2"], f"{PIPELINE}=1"),
    ],
)
def test_what_brings_trainers_back_is_refused_where_none_come_back(word: str, others: list[str], mended: str) -> None:
    key = word.partition("=")[0]

    def told(words: list[str]) -> list[str]:
        return [problem.what for problem in examine([*LAPTOP, *others, *words]).problems if problem.where == key]

    (problem,) = told([word])
    assert problem.startswith("does nothing")
    assert told([word, mended] if mended.partition("=")[0] != key else [mended]) == []
