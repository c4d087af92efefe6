"""The divergence from the reference in the rewards that a critic learns of, in float64 and on ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from slime.algo.policy_gradient import PolicyGradient
from slime.algo.stages import objective_of, run_stages
from slime.config.schema import AlgoConfig, KlIn, SlimeConfig
from slime.estimator import PENALTIES
from slime.objective import LossInputs, Source
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS, MicroBatch
from slime_algorithms.ppo.gae import Gae
from slime_testing.ranks import Rank, run_ranks

from .test_critic import OF_REFERENCE, WAYS, Told, batches_of, compare, start, train_ways
from .tiny import HF, write_model

COEF, GAMMA, LAMBDA = 0.3, 0.99, 0.95
EXACT = {"rel": 1e-12, "abs": 1e-13}
"""Float64 on both sides, sums of a few terms of order 1."""
IN_REWARD = {"kl_coef": COEF, "kl_in": KlIn.reward}


def paper(rewards: Sequence[float], values: Sequence[float], gamma: float, lam: float) -> list[float]:
    """Equation 16 of arXiv 1506.02438."""
    count, following = len(rewards), [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * following[t] - values[t] for t in range(count)]
    return [math.fsum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, count)) for t in range(count)]


def micro_batch(lengths: Sequence[int], mask: np.ndarray, rewards: np.ndarray) -> MicroBatch:
    count = sum(lengths)
    nothing = np.zeros(count, np.int64)
    return MicroBatch(
        tokens=nothing,
        labels=nothing,
        position_ids=nothing,
        cu_seqlens=np.cumsum([0, *lengths]).astype(np.int32),
        is_padding=np.zeros(count, bool),
        loss_mask=mask.astype(np.float32),
        loss_weights=mask.astype(np.float32),
        sample_ids=range(len(lengths)),
        columns={ADVANTAGES: rewards.astype(np.float32)},
    )


def test_returns_of_penalised_rewards_by_hand() -> None:
    """Three loss tokens with a gap between them, and one in a sequence of its own. With a discount of 1/2 and lambda 1
    the return is what comes, whatever the values."""
    from slime_megatron.train.returns import advantages_of

    mask = np.array([0, 1, 0, 1, 1, 0, 0, 1, 0])
    penalties = np.array([math.nan, 0.5, math.inf, -0.25, 1.0, -9.0, 9.0, 0.125, math.nan])
    rewards = np.where(mask, [0, 0, 0, 0, 2.0, 0, 0, -1.0, 0], math.nan)
    values = np.array([9.0, 0.75, 9, -3.0, 5.0, 9, 9, 0.5, 9])
    micro = micro_batch([6, 3], mask, rewards)
    advantages, returns = advantages_of(Gae(gamma=0.5, gae_lambda=1.0), micro, values, penalties)
    # 2 - 1 = 1; 0.25 + 1/2 = 0.75; -0.5 + 0.75/2 = -0.125; -1 - 0.125
    assert returns.tolist() == [0, -0.125, 0, 0.75, 1.0, 0, 0, -1.125, 0]
    assert advantages.tolist() == [0, -0.875, 0, 3.75, -4.0, 0, 0, -1.625, 0]


def test_advantages_and_returns_are_the_papers_of_penalised_rewards() -> None:
    """The penalty is equation 2 of arXiv 1909.08593."""
    from slime_megatron.train.returns import advantages_of

    generator, lengths = np.random.default_rng(0), [1, 7, 300, 40, 2]
    count = sum(lengths)
    mask = generator.random(count) < 0.6
    old, ref, values = generator.normal(size=(3, count))
    rewards = np.where(generator.random(count) < 0.1, generator.normal(size=count), 0.0)
    micro = micro_batch(lengths, mask, rewards)
    columns = {"old_logprobs": torch.from_numpy(old), "ref_logprobs": torch.from_numpy(ref)}
    penalties = objective(**IN_REWARD).penalties(columns).numpy()
    advantages, returns = advantages_of(
        Gae(gamma=GAMMA, gae_lambda=LAMBDA, critic_lambda=LAMBDA), micro, values, penalties
    )
    assert not advantages[~mask].any()
    assert not returns[~mask].any()
    for start_of, end in pairwise(micro.cu_seqlens.tolist()):
        rows = [row for row in range(start_of, end) if mask[row]]
        of_tokens = [float(micro.columns[ADVANTAGES][row]) - COEF * (old[row] - ref[row]) for row in rows]
        wanted = paper(of_tokens, values[rows].tolist(), GAMMA, LAMBDA)
        assert advantages[rows].tolist() == pytest.approx(wanted, **EXACT)
        assert returns[rows].tolist() == pytest.approx([a + v for a, v in zip(wanted, values[rows], strict=True)])


def objective(**algo: Any) -> PolicyGradient:
    made = objective_of(AlgoConfig(clip_low=0.99, clip_high=99.0, **algo))
    assert isinstance(made, PolicyGradient)
    return made


def test_the_expected_gradient_is_that_of_the_reward_less_the_divergence_of_sequences() -> None:
    """Exactly, over 49 sequences of two tokens, with discount and lambda of 1 and whatever the values. Taken twice, or
    from the token alone that it is about, the penalty would have another gradient."""
    torch.manual_seed(0)
    first, second = torch.randn(7).double().requires_grad_(), torch.randn(7, 7).double().requires_grad_()
    ref = of_sequences(torch.randn(7).double(), torch.randn(7, 7).double())
    logp, rewards, columns = of_sequences(first, second), torch.randn(49).double(), dict[str, Tensor]()
    columns = {"old_logprobs": logp.detach().flatten(), "ref_logprobs": ref.flatten()}
    columns[ROLLOUT_LOGPROBS] = columns["old_logprobs"]
    chosen = objective(**IN_REWARD)
    columns[PENALTIES] = chosen.penalties(columns)
    of_tokens = torch.stack([torch.zeros(49), rewards], dim=1).double() - columns[PENALTIES].view(49, 2)
    values = np.repeat(np.random.default_rng(0).normal(size=(7, 2)), 7, axis=0)
    values[:, 0] = 0.4  # a value knows what came before its token and not the token
    made = [Gae(gae_lambda=1.0).from_values(*each) for each in zip(of_tokens.numpy(), values, strict=True)]
    columns[ADVANTAGES] = torch.from_numpy(np.stack(made)).flatten()
    chances = logp.detach().sum(1).exp().repeat_interleave(2)
    inputs = LossInputs(torch.ones_like(chances), chances, columns, lambda x: x.view(49, 2).sum(1).repeat_interleave(2))
    terms = chosen.loss(torch.stack([logp.flatten(), torch.zeros(98).double()]), inputs)
    whole = logp.sum(1)
    wanted = (whole.exp() * (rewards - COEF * (whole - ref.sum(1)))).sum()
    found = torch.autograd.grad(-terms.loss, (first, second), retain_graph=True)
    for gradient, other in zip(found, torch.autograd.grad(wanted, (first, second)), strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-12, atol=1e-14)


def of_sequences(first: Tensor, second: Tensor) -> Tensor:
    """[49, 2] log-probs of each token of all sequences of two."""
    pairs = first.log_softmax(0)[:, None].expand(7, 7), second.log_softmax(1)
    return torch.stack(pairs, dim=2).reshape(49, 2)


@pytest.mark.parametrize(
    ("algo", "one", "several"),
    [
        (IN_REWARD, [Source.policy, Source.reference], [Source.policy, Source.reference]),
        (IN_REWARD | {"rollout_logprobs_as_old": True}, [Source.reference], [Source.reference]),
        (IN_REWARD | {"advantage": "grpo"}, [Source.policy, Source.reference], [Source.policy, Source.reference]),
        (IN_REWARD | {"kl_coef": 0.0}, [Source.reference], [Source.policy, Source.reference]),
        (IN_REWARD | {"kl_in": KlIn.loss}, [Source.reference], [Source.policy, Source.reference]),
    ],
    ids=["in the reward", "the engine's log-probs", "no critic", "measured", "in the loss"],
)
def test_who_needs_the_old_policy_before_the_first_step(
    algo: dict[str, Any], one: list[Source], several: list[Source]
) -> None:
    [stage] = run_stages(SlimeConfig(algo=AlgoConfig(**({"advantage": "gae"} | algo))))
    assert stage.passes(1) == one
    assert stage.passes(2) == several
    old = ROLLOUT_LOGPROBS if "rollout_logprobs_as_old" in algo else "old_logprobs"
    takes = stage.objective.kl_coef and stage.objective.kl_in is KlIn.reward
    assert tuple(stage.penalised_by) == ((old, "ref_logprobs") if takes else ())
    assert stage.penalises_attempts is (algo.get("advantage") == "grpo")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory)


PLAIN = {"advantage_options": {"gamma": GAMMA, "gae_lambda": LAMBDA, "critic_lambda": LAMBDA, "whiten": False}}
STEPS: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "one optimizer step": (1, IN_REWARD),
    "two": (2, IN_REWARD),
    "the engine's log-probs": (1, IN_REWARD | {"rollout_logprobs_as_old": True}),
}


def learnt(rank: Rank, model: Path) -> Any:
    """By name of `STEPS`, what the policy learns from: of each micro-batch its columns and its place in the packing;
    and the metrics of the step. Masked tokens hold NaN and infinities."""
    told: dict[str, Any] = {}
    for name, (optimizer_steps, algo) in STEPS.items():
        trainer = start(rank, model, algo=PLAIN | dict(algo))
        trainer.begin_critic("rl")
        head = trainer.critic.model.modules[0].output_layer.weight
        head.data = torch.randn(head.shape, generator=torch.Generator().manual_seed(1))
        learn, packs = trainer.critic.learn, list[Any]()

        def recording(whole: Any, *args: Any, learn: Any = learn, packs: list[Any] = packs) -> Any:
            valued, found = learn(whole, *args)
            for micro, own in zip(chain(*whole), chain(*valued), strict=True):
                packs.append((micro, {column: x.double().numpy() for column, x in own.columns.items()}))
            return valued, found

        trainer.critic.learn = recording
        batches = batches_of(trainer, 1, max_tokens=150, spoils=True, optimizer_steps=optimizer_steps)
        told[name] = packs, trainer.train(batches, 1, "rl")
        rank = rank.again()
        torch.distributed.destroy_process_group()
    return told


def test_a_step_takes_the_divergence_of_transformers_log_probs_from_the_rewards(model: Path) -> None:
    from slime_testing.models import random_model

    [told] = run_ranks(learnt, 1, model, timeout_s=110)
    policy, reference = random_model(HF).double(), random_model(HF).double()
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.mul_(OF_REFERENCE)
    for name, (packs, metrics) in told.items():
        assert len(packs) > 1
        advantages, largest = list[float](), 0.0
        for micro, columns in packs:
            for start_of, end in pairwise(micro.cu_seqlens.tolist()):
                rows = [row for row in range(start_of, end) if micro.loss_mask[row]]
                if not rows:
                    continue
                own, ref = (logprobs_of(each, micro, start_of, end) for each in (policy, reference))
                if name == "the engine's log-probs":
                    own = micro.columns[ROLLOUT_LOGPROBS][start_of:end]
                wanted = [COEF * float(own[row - start_of] - ref[row - start_of]) for row in rows]
                # fp32 against float64, log-probs of order 5 behind two layers; sums of tens of them.
                assert columns[PENALTIES][rows].tolist() == pytest.approx(wanted, abs=1e-5), name
                rewards = [float(micro.columns[ADVANTAGES][row]) - x for row, x in zip(rows, wanted, strict=True)]
                values = columns["values"][rows].tolist()
                of_sequence = paper(rewards, values, GAMMA, LAMBDA)
                assert columns[ADVANTAGES][rows].tolist() == pytest.approx(of_sequence, abs=1e-4), name
                returns = [a + v for a, v in zip(of_sequence, values, strict=True)]
                assert columns["returns"][rows].tolist() == pytest.approx(returns, abs=1e-4), name
                advantages += of_sequence
                largest = max(largest, *map(abs, wanted))
        assert largest > 0.05, "penalties that matter"
        if name == "one optimizer step":
            # The ratio is 1. Were the penalty taken from the advantages too, the loss would be another one.
            assert metrics["pg_loss"] == pytest.approx(-np.mean(advantages), abs=1e-5)


def logprobs_of(model: Any, micro: MicroBatch, start_of: int, end: int) -> np.ndarray:
    """Of a sequence's labels, by transformers' class in float64."""
    tokens, labels = (torch.from_numpy(x[start_of:end])[None] for x in (micro.tokens, micro.labels))
    with torch.no_grad():
        found: Tensor = model(tokens).logits.log_softmax(-1).gather(-1, labels[..., None])
    return found[0, :, 0].numpy()


@pytest.fixture(scope="module")
def alone(model: Path) -> dict[str, Told]:
    [told] = run_ranks(train_ways, 1, model, WAYS[1], IN_REWARD, timeout_s=110)
    return told


def test_what_is_taken_depends_on_no_packing_and_no_masked_token(alone: dict[str, Told]) -> None:
    for way, told in alone.items():
        compare(way, told, alone["alone"])


@pytest.mark.slow
def test_every_layout_takes_the_same(model: Path, alone: dict[str, Told]) -> None:
    results = run_ranks(train_ways, 2, model, WAYS[2], IN_REWARD, timeout_s=220)
    for way in WAYS[2]:
        assert results[0][way].history == results[1][way].history, "all ranks report the same"
        compare(way, results[0][way], alone["alone"])


def without_penalties(rank: Rank, model: Path) -> list[bool]:
    """Whether what a critic learns from is left as it is."""
    from slime_megatron.train.penalties import with_penalties

    trainer = start(rank, model, algo=IN_REWARD)
    local, found = [trainer._local(batch) for batch in batches_of(trainer, 1)], list[bool]()
    for algo in (IN_REWARD | {"kl_coef": 0.0}, IN_REWARD | {"kl_in": KlIn.loss}, {}):
        [stage] = run_stages(SlimeConfig(algo=AlgoConfig(advantage="gae", **algo)))
        found.append(with_penalties(stage, local, {}) is local)
    return found


def test_without_a_penalty_in_the_reward_nothing_is_taken(model: Path) -> None:
    assert run_ranks(without_penalties, 1, model) == [[True, True, True]]
