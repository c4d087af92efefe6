"""The divergence from the reference in rewards that are compared, without a critic: float64, and every layout."""

from __future__ import annotations

import json
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from slime.algo.advantages import EPSILON, GroupMean
from slime.config.schema import AlgoConfig, KlIn
from slime.sampling.samples import Compared, compare, with_advantages
from slime.segments import Segment, WeightSpan
from slime.types import Group, Prompt, Sample, Status, Verdict
from slime_testing.ranks import Rank, run_ranks
from tests.advantages import guarded

CONFIGS = Path(__file__).parents[3] / "models/glm4/tests/configs"
HF: dict[str, Any] = json.loads((CONFIGS / "dense.json").read_text()) | {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 96,
}
COEF, OF_REFERENCE = 0.3, 0.9
"""The reference has other weights than the policy: this many times these."""
VERSION, MAX_LAG = 4, 2
REWARDS = [[1.0, 0.0, 0.5, None], [0.0, 0.25, 1.0], [1.0, 1.0]]
"""Of the samples of each group; the second of the first has three segments, the third of the second lags whole."""
NEAR = {"abs": 2e-4}
"""fp32 against float64: sums of up to thirty log-prob differences, each within 1e-5, over deviations of about 0.4."""
WAYS: Mapping[int, Mapping[str, Mapping[str, Any]]] = {
    1: {
        "alone": {},
        "small packs": {"max_tokens": 48},
        "shared prompts": {"share_below": 1.0},
        "two optimizer steps": {"optimizer_steps": 2},
        "the engine's log-probs": {"rollout_logprobs_as_old": True},
    },
    2: {
        "data parallel": {},
        "context parallel": {"context_parallel_size": 2},
        "tensor parallel": {"tensor_model_parallel_size": 2},
        "pipeline parallel": {"pipeline_model_parallel_size": 2},
    },
}


class Told(NamedTuple):
    """Of a step: the penalty of each sequence, its advantage, and metrics."""

    penalties: dict[int, float]
    advantages: list[float]
    metrics: dict[str, float]


def segment(generator: np.random.Generator, context: Sequence[int], version: int = VERSION) -> Segment:
    """Ten to twenty tokens, of which a program wrote some, and older weights than may be learnt of sampled the first
    three."""
    count = int(generator.integers(10, 20))
    mask = [int(x) for x in generator.random(count) < 0.8]
    spans = [WeightSpan(VERSION - MAX_LAG - 1, 3), WeightSpan(version, count - 3)]
    tokens = generator.integers(1, HF["vocab_size"], count).tolist()
    logprobs = (-math.log(HF["vocab_size"]) + generator.normal(0, 0.3, count)).tolist()
    return Segment(tuple(context), tokens, logprobs, mask, spans)


def groups() -> list[Group]:
    generator, found = np.random.default_rng(0), []
    for number, rewards in enumerate(REWARDS):
        prompt = Prompt(f"0/{number}", (), (5 + number, 6, 7, 8))
        samples = []
        for index, reward in enumerate(rewards):
            sizes = 3 if (number, index) == (0, 1) else 1
            version = 0 if (number, index) == (1, 2) else VERSION
            made = [segment(generator, prompt.tokens, version) for _ in range(sizes)]
            verdict = Verdict.error("no value") if reward is None else Verdict.of(reward)
            samples.append(Sample(prompt, index, made, Status.COMPLETED, verdict=verdict))
        found.append(Group(prompt, samples))
    return found


def compared() -> Compared:
    return compare(groups(), 2, VERSION, MAX_LAG)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from slime_testing.models import write_checkpoint

    folder = tmp_path_factory.mktemp("model")
    write_checkpoint(HF, folder)
    return folder


def start(rank: Rank, model: Path, megatron: Mapping[str, Any], optimizer_steps: int, **algo: Any) -> Any:
    from slime.config.schema import SlimeConfig
    from slime_megatron.train.trainer import Trainer

    cfg = SlimeConfig(algo=AlgoConfig(kl_coef=COEF, kl_in=KlIn.reward, **algo))
    cfg.model.family, cfg.model.path, cfg.train.megatron = HF["model_type"], str(model), dict(megatron)
    cfg.run.num_steps, cfg.train.steps_per_rollout = 10, optimizer_steps
    cfg.train.optimizer = {"lr": 1e-3}
    trainer = Trainer(cfg, *rank)
    trainer.init_weights()
    trainer.snapshot_reference()
    for tensor in (tensor for module in trainer.reference for tensor in module.values()):
        tensor.mul_(OF_REFERENCE)
    return trainer


def step(
    rank: Rank,
    model: Path,
    *,
    max_tokens: int = 512,
    share_below: float = 0.0,
    optimizer_steps: int = 1,
    rollout_logprobs_as_old: bool = False,
    **megatron: Any,
) -> Told:
    """What a run does between a rollout and the end of its step."""
    from slime.train.packing import pack

    algo = {"rollout_logprobs_as_old": rollout_logprobs_as_old}
    trainer, step = start(rank, model, megatron, optimizer_steps, **algo), compared()
    batches = pack(
        step.sequences,
        num_dp=trainer.data_parallel_size,
        align=trainer.packing_align,
        max_tokens=max_tokens,
        loss_mean=trainer.cfg.algo.loss_mean,
        num_optimizer_steps=optimizer_steps,
        share_below=share_below,
    )
    if share_below:
        assert any(micro.prefixes is not None for micro in batches[0].micro_batches[0])

    def mine(batches: Sequence[Any]) -> list[Any]:
        return [batch.share(trainer.data_parallel_rank) for batch in batches]

    every: list[Any] = [None] * rank.world_size
    torch.distributed.all_gather_object(every, trainer.penalties(mine(batches), "rl"))
    penalties = {number: math.fsum(of.get(number, 0.0) for of in every) for of in every for number in of}
    advantages = step.advantages(guarded(GroupMean(normalize_std=True)), penalties)
    values = trainer.train(mine(with_advantages(batches, advantages)), 1, "rl")
    kept = {name: value for name, value in values.items() if not name.startswith("seconds/")}
    return Told(penalties, [float(of_tokens[0]) for of_tokens in advantages], kept)


def step_in(rank: Rank, model: Path, ways: Mapping[str, Mapping[str, Any]]) -> dict[str, Told]:
    found = {}
    for way, options in ways.items():
        found[way] = step(rank, model, **options)
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return found


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, Told]:
    [found] = run_ranks(step_in, 1, model, WAYS[1], timeout_s=110)
    return found


def divergences(of_engine: bool) -> list[list[float]]:
    """Of each sequence, log pi_old - log ref of its loss tokens, by transformers' class in float64."""
    from slime_testing.models import random_model

    policy, reference = random_model(HF).double(), random_model(HF).double()
    found = []
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(OF_REFERENCE)
        for sequence in compared().sequences:
            tokens, count = torch.from_numpy(sequence.tokens), sequence.num_response_tokens
            own, ref = (
                model(tokens[None, :-1]).logits[0].log_softmax(-1).gather(-1, tokens[1:, None])[-count:, 0]
                for model in (policy, reference)
            )
            if of_engine:
                own = torch.from_numpy(sequence.columns["rollout_logprobs"]).double()
            found.append((own - ref)[torch.from_numpy(sequence.loss_mask) != 0].tolist())
    return found


def wanted_of(of_engine: bool = False) -> tuple[list[float], list[float], float]:
    """Penalties and advantages of the sequences, and the loss: r - beta sum KL, less its mean in the group, over the
    deviation of the group, which is that of DeepSeekMath (arXiv 2402.03300) of penalised rewards."""
    by_sequence, sequences = divergences(of_engine), compared().sequences
    penalties = [COEF * math.fsum(each) for each in by_sequence]
    rewards = [[1.0, 0.0, 0.5], [0.0, 0.25], [1.0, 1.0]]
    of_attempts, number = list[float](), 0
    for group in rewards:
        less = []
        for reward in group:
            own = [penalty for penalty, each in zip(penalties, sequences, strict=True) if each.attempt == number]
            less.append(reward - math.fsum(own))
            number += 1
        scale = statistics.stdev(less) + EPSILON
        of_attempts += [(reward - statistics.fmean(less)) / scale for reward in less]
    advantages = [of_attempts[sequence.attempt or 0] for sequence in sequences]
    of_tokens = [x for x, each in zip(advantages, by_sequence, strict=True) for _ in each]
    return penalties, advantages, -statistics.fmean(of_tokens)


@pytest.mark.parametrize("of_engine", [False, True], ids=["of the trainer", "of the engine"])
def test_the_penalty_is_taken_from_rewards_before_they_are_compared(alone: dict[str, Told], of_engine: bool) -> None:
    penalties, advantages, loss = wanted_of(of_engine)
    assert max(map(abs, penalties)) > 0.05, "penalties that matter"
    assert len({sequence.attempt for sequence in compared().sequences}) == len(penalties) - 2, "an attempt of three"
    told = alone["the engine's log-probs" if of_engine else "alone"]
    assert [told.penalties[number] for number in range(len(penalties))] == pytest.approx(penalties, **NEAR)
    assert told.advantages == pytest.approx(advantages, **NEAR)
    if not of_engine:  # with whose log-probs the ratio is not 1
        assert told.metrics["pg_loss"] == pytest.approx(loss, **NEAR)
    # Two of the same reward differ by what they cost, which a penalty behind the deviation would not show.
    [one, other] = told.advantages[-2:]
    assert (one, other) == pytest.approx((math.copysign(0.5**0.5, one), math.copysign(0.5**0.5, other)), **NEAR)


def test_what_is_taken_depends_on_no_packing(alone: dict[str, Told]) -> None:
    for way in ("small packs", "shared prompts", "two optimizer steps"):
        compare_told(way, alone[way], alone["alone"])


def of_a_broken_reference(rank: Rank, model: Path) -> str:
    """What is said of it."""
    from slime.errors import SlimeError
    from slime.train.packing import pack

    trainer = start(rank, model, {}, 1)
    for tensor in (tensor for module in trainer.reference for tensor in module.values()):
        tensor.fill_(math.nan)
    mean = trainer.cfg.algo.loss_mean
    batches = pack(compared().sequences, num_dp=1, align=trainer.packing_align, max_tokens=512, loss_mean=mean)
    with pytest.raises(SlimeError) as caught:
        trainer.penalties(batches, "rl")
    return str(caught.value)


def test_a_penalty_that_is_not_finite_is_no_fault_of_the_estimator(model: Path) -> None:
    [told] = run_ranks(of_a_broken_reference, 1, model)
    assert re.match(r"log-probs: what is taken from rewards is not finite, in sample \d of the step: nan\. See", told)


@pytest.mark.slow
def test_every_layout_takes_the_same(model: Path, alone: dict[str, Told]) -> None:
    results = run_ranks(step_in, 2, model, WAYS[2], timeout_s=220)
    for way in WAYS[2]:
        assert results[0][way] == results[1][way], "all ranks report the same"
        compare_told(way, results[0][way], alone["alone"])


def compare_told(way: str, told: Told, wanted: Told) -> None:
    assert told.penalties == pytest.approx(wanted.penalties, abs=2e-5), way
    assert told.advantages == pytest.approx(wanted.advantages, abs=1e-4), way
    if way != "two optimizer steps":
        for name in ("loss", "pg_loss", "kl", "grad_norm", "entropy"):
            assert told.metrics[name] == pytest.approx(wanted.metrics[name], rel=1e-4, abs=1e-5), (way, name)
