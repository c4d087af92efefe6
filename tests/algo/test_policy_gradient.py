"""The divergence from the reference, in the loss and in the reward: exact expectations of the gradient, in float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.algo.losses import bounded_ratio, kl_penalty, unbiased_kl
from slime.algo.policy_gradient import PolicyGradient
from slime.algo.stages import objective_of
from slime.compose.compose import examine
from slime.config.schema import AlgoConfig, Importance, ImportanceTokens, KlEstimator, KlIn
from slime.objective import LossInputs
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS

LAPTOP = ["+model=glm4-tiny", "+cluster=local"]
EXACT: Mapping[str, Any] = {"rtol": 1e-12, "atol": 1e-14}
"""Sums of 49 products of float64."""
COEF = 0.3


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def gradient_of(loss: Tensor, *logits: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, logits, retain_graph=True))


def objective(**algo: Any) -> PolicyGradient:
    """GRPO whose bounds are far away."""
    keys = {"clip_low": 0.99, "clip_high": 99.0, "kl_coef": COEF, **algo}
    made = objective_of(AlgoConfig(**keys))
    assert isinstance(made, PolicyGradient)
    return made


def inputs_of(chances: Tensor, columns: Mapping[str, Tensor], lengths: Sequence[int]) -> LossInputs:
    """Loss tokens alone, each weighted with the chance of its sequence, so that sums are expectations."""
    sizes = torch.tensor(lengths)

    def sums(values: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in values.split(sizes.tolist())]).repeat_interleave(sizes)

    return LossInputs(torch.ones_like(chances), chances, columns, sums)


@pytest.mark.parametrize("estimator", KlEstimator)
@pytest.mark.parametrize("moved", [0.0, 0.2])
def test_an_unbiased_penalty_has_the_gradient_of_the_reverse_divergence(estimator: KlEstimator, moved: float) -> None:
    """Over seven outcomes that the old policy samples, through the whole loss; the advantages are 0."""
    torch.manual_seed(0)
    logits = drawn(7).requires_grad_()
    logp, old, ref = logits.log_softmax(0), (logits.detach() + moved * drawn(7)).log_softmax(0), drawn(7).log_softmax(0)
    columns = {ADVANTAGES: torch.zeros(7).double(), ROLLOUT_LOGPROBS: old, "old_logprobs": old, "ref_logprobs": ref}
    inputs = inputs_of(old.exp(), columns, [1] * 7)
    chosen = objective(kl_estimator=estimator, kl_unbiased=True)
    terms = chosen.loss(torch.stack([logp, torch.zeros_like(logp)]), inputs)
    (wanted,) = gradient_of(COEF * (logp.exp() * (logp - ref)).sum(), logits)
    torch.testing.assert_close(gradient_of(terms.loss, logits)[0], wanted, **EXACT)


WRONG: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "sg[r] k3": lambda kl, ratio: ratio.detach() * kl(KlEstimator.k3),
    "r k2, with the gradient of r": lambda kl, ratio: ratio * kl(KlEstimator.k2),
    "k2 without r": lambda kl, ratio: kl(KlEstimator.k2),
}


@pytest.mark.parametrize("formula", WRONG.values(), ids=WRONG)
def test_what_others_have_taken_for_it_is_another_gradient(formula: Callable[[Any, Tensor], Tensor]) -> None:
    torch.manual_seed(0)
    logits = drawn(7).requires_grad_()
    logp, old, ref = logits.log_softmax(0), (logits.detach() + 0.5 * drawn(7)).log_softmax(0), drawn(7).log_softmax(0)
    penalty = formula(partial(kl_penalty, logp - ref), bounded_ratio(logp - old))
    (found,) = gradient_of((old.exp() * penalty).sum(), logits)
    (wanted,) = gradient_of((logp.exp() * (logp - ref)).sum(), logits)
    assert (found - wanted).abs().max() > 0.02


def test_an_unbiased_penalty_of_a_far_token_is_finite() -> None:
    """fp32's exp ends at 88.7."""
    far = torch.tensor([-1000.0, -90.0, 90.0, 1000.0], requires_grad=True)
    penalty = unbiased_kl(kl_penalty(far, KlEstimator.low_var_kl), far, KlEstimator.low_var_kl)
    assert penalty.isfinite().all()
    assert torch.autograd.grad(penalty.sum(), far)[0].isfinite().all()


def two_tokens() -> tuple[list[Tensor], Tensor, Tensor]:
    """A policy of two tokens, of which the second depends on the first: its logits; [49, 2] log-probs of its and of
    another one's sequences."""
    found = []
    for logits in ([drawn(7).requires_grad_(), drawn(7, 7).requires_grad_()], [drawn(7), drawn(7, 7)]):
        first, second = logits[0].log_softmax(0), logits[1].log_softmax(1)
        found.append((logits, torch.stack([first[:, None].expand(7, 7), second], dim=2).reshape(49, 2)))
    (logits, logp), (_, ref) = found
    return logits, logp, ref


def test_in_the_reward_it_has_the_gradient_of_the_divergence_of_sequences() -> None:
    """The first token answers for what the second costs: taken from the reward of the whole, before it is compared, and
    by the loss never again."""
    torch.manual_seed(0)
    logits, logp, ref = two_tokens()
    rewards, chosen = drawn(49), objective(kl_in=KlIn.reward)
    columns = {"ref_logprobs": ref.flatten(), "old_logprobs": logp.detach().flatten()}
    penalties = chosen.penalties(columns).reshape(49, 2).sum(1)
    columns[ADVANTAGES] = (rewards - penalties).repeat_interleave(2)
    columns[ROLLOUT_LOGPROBS] = logp.detach().flatten()
    inputs = inputs_of(logp.detach().sum(1).exp().repeat_interleave(2), columns, [2] * 49)
    scores = torch.stack([logp.flatten(), torch.zeros(98).double()])
    terms = chosen.loss(scores, inputs)
    whole, reference = logp.sum(1), ref.sum(1)
    wanted = gradient_of(-(whole.exp() * rewards).sum() + COEF * (whole.exp() * (whole - reference)).sum(), *logits)
    for found, exact in zip(gradient_of(terms.loss, *logits), wanted, strict=True):
        torch.testing.assert_close(found, exact, **EXACT)
    columns[ADVANTAGES] = rewards.repeat_interleave(2)
    in_loss = objective(kl_estimator=KlEstimator.k3, kl_unbiased=True).loss(scores, inputs)
    assert (gradient_of(in_loss.loss, *logits)[0] - wanted[0]).abs().max() > 1e-3, "of each token alone"
    assert terms.token_sums["kl"].item() == pytest.approx((logp - ref).sum().item(), rel=1e-12)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["algo.kl_in=reward"], "does nothing without algo.kl_coef above 0"),
        (["algo.kl_unbiased=true", "algo.kl_coef=0"], "does nothing without algo.kl_coef above 0"),
        (["algo.kl_in=reward", "algo.kl_coef=0.1", "algo.kl_estimator=k2"], "does nothing with algo.kl_in=reward"),
        (["algo.kl_in=reward", "algo.kl_coef=0.1", "algo.kl_unbiased=true"], "does nothing with algo.kl_in=reward"),
        (["algo.kl_coef=0.1", "algo.kl_estimator=k1"], "k1 is no penalty: its gradient is zero in expectation"),
        (
            ["algo.rejected_in_mean=false"],
            "does nothing without algo.sequence_bound, algo.sequence_veto or algo.importance=mask",
        ),
        (
            ["algo.rejected_in_mean=false", "algo.sequence_bound=2", "algo.opsm_bound=0.1"],
            "false needs what is rejected before the step, and algo.opsm_bound asks the policy that the step changes",
        ),
        (
            ["algo.rejected_in_mean=false", "algo.sequence_bound=2", "algo.loss_mean=constant"],
            "false has no mean over tokens to change with algo.loss_mean=constant",
        ),
        (["algo.rejected_in_mean=false", "algo.sequence_bound=2"], ""),
        (["algo.rejected_in_mean=false", "algo.importance=mask", "algo.importance_tokens=all"], ""),
        (["algo.kl_coef=0.1", "algo.kl_in=reward"], ""),
        (["algo.kl_coef=0.1", "algo.kl_estimator=k1", "algo.kl_unbiased=true"], ""),
    ],
)
def test_what_teaches_nothing_is_refused(words: list[str], told: str) -> None:
    problems = examine([*LAPTOP, *words]).problems
    assert len(problems) == (1 if told else 0), problems
    assert told in "".join(map(str, problems))


ENGINE = [[-1.0, -1.0], [-1.0, -1.0, -1.0], [-2.0], [-1.0, -1.0]]
OLD = [[-1.3, -0.8], [-1.5, -1.4, -1.6], [-1.2], [-1.0, -4.0]]
"""Log-probs of four sequences; the geometric means of w are e^-0.05, e^-0.5, e^0.8 and e^-1.5."""


def flat(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


@pytest.mark.parametrize(
    ("algo", "kept"),
    [
        ({"sequence_bound": 2.0}, [1, 1, 0, 0]),
        ({"sequence_bound": 1.5}, [1, 0, 0, 0]),
        ({"sequence_veto": 0.06}, [1, 1, 1, 0]),
        ({"sequence_veto": 0.04}, [1, 1, 1, 1]),
        ({"opsm_bound": 0.4}, [1, 0, 1, 1]),  # of the last the advantage is not negative
        ({"opsm_bound": 0.4, "sequence_bound": 3.0}, [1, 0, 1, 0]),
        ({"opsm_bound": 0.4, "rollout_logprobs_as_old": True}, [1, 0, 1, 1]),
    ],
)
def test_rejected_sequences_have_no_policy_loss_and_keep_their_place_in_the_mean(
    algo: dict[str, Any], kept: list[int]
) -> None:
    """Nothing else changes: the others' losses, the weights, the entropy bonus and the KL penalty. One number for each
    sequence: no weight of a token stands for a sequence, and no sum over its tokens for their mean."""
    lengths = [len(row) for row in OLD]
    advantages = torch.tensor([-1.0, -2.0, -0.5, 3.0]).double().repeat_interleave(torch.tensor(lengths))
    columns = {ADVANTAGES: advantages, ROLLOUT_LOGPROBS: flat(ENGINE), "old_logprobs": flat(OLD)}
    columns["ref_logprobs"] = flat(ENGINE) - 0.1
    inputs = inputs_of(torch.full((8,), 1 / 8).double(), columns, lengths)
    scores = torch.stack([flat(OLD), flat(ENGINE)]).requires_grad_()
    whole = {key: value for key, value in algo.items() if key == "rollout_logprobs_as_old"}
    rejecting, plain = (objective(**keys, entropy_coef=0.1).loss(scores, inputs) for keys in (algo, whole))
    is_kept = torch.tensor(kept).repeat_interleave(torch.tensor(lengths))
    alone = objective(**whole, kl_coef=None).loss(scores, inputs)
    (of_policy,) = torch.autograd.grad(alone.means["pg_loss"], scores)
    (found,) = torch.autograd.grad(rejecting.loss, scores)
    (wanted,) = torch.autograd.grad(plain.loss, scores)
    torch.testing.assert_close(found, wanted - of_policy * (1 - is_kept), **EXACT)
    assert float(rejecting.token_sums["rejected_share"]) == 8 - int(is_kept.sum())


@pytest.mark.parametrize("mean", ["token", "sample"])
@pytest.mark.parametrize(
    ("algo", "kept"),
    [
        ({"sequence_bound": 2.0}, [1, 1, 1, 1, 1, 0, 0, 0]),
        ({"sequence_veto": 0.06}, [1, 1, 1, 1, 1, 1, 0, 0]),
        ({"importance": Importance.mask, "importance_low": 0.7}, [1, 1, 0, 0, 0, 0, 1, 0]),
        ({"importance": Importance.mask, "importance_low": 0.7, "sequence_bound": 2.0}, [1, 1, 0, 0, 0, 0, 0, 0]),
        ({"importance": Importance.mask, "importance_low": 0.99, "importance_high": 1.0}, [0, 0, 0, 0, 0, 0, 1, 0]),
        ({"sequence_bound": 1.01}, [0] * 8),
        ({}, [1] * 8),
    ],
)
def test_a_mean_over_what_is_left_is_that_of_a_step_without_the_rejected(
    algo: dict[str, Any], kept: list[int], mean: str
) -> None:
    """The policy loss of two micro-batches with what is left alone has the weights that are left, over their sum; the
    entropy bonus and the penalty are those of all tokens."""
    lengths, is_kept = [len(row) for row in OLD], torch.tensor(kept).double()
    sizes = torch.tensor(lengths).repeat_interleave(torch.tensor(lengths))
    weights = torch.full((8,), 1 / 8).double() if mean == "token" else 1 / (4 * sizes.double())
    columns = {ADVANTAGES: torch.arange(8).double() - 3.5, ROLLOUT_LOGPROBS: flat(ENGINE), "old_logprobs": flat(OLD)}
    columns["ref_logprobs"] = flat(ENGINE) - 0.1
    shared = {"importance_tokens": ImportanceTokens.all, "entropy_coef": 0.1, **algo}
    chosen, keeping = objective(**shared, rejected_in_mean=False), objective(**shared)
    parts = [(slice(0, 5), lengths[:2]), (slice(5, 8), lengths[2:])]
    batches = [inputs_of(weights[own], {name: x[own] for name, x in columns.items()}, of) for own, of in parts]
    sums = [chosen.step_sums(inputs) for inputs in batches]
    whole = {name: sum(each[name] for each in sums) for name in sums[0]}
    scores = torch.stack([flat(OLD) + 0.05, flat(ENGINE)]).requires_grad_()
    found, kept_in_mean = (
        [
            of.loss(scores[:, own], dataclasses.replace(inputs, step_sums=whole))
            for inputs, (own, _) in zip(batches, parts, strict=True)
        ]
        for of in (chosen, keeping)
    )
    left = (weights * is_kept).sum()
    scale = 1 / left if left else torch.tensor(1.0)
    of_policy = sum(terms.means["pg_loss"] for terms in kept_in_mean)
    others = sum(terms.loss for terms in kept_in_mean) - of_policy
    torch.testing.assert_close(sum(terms.loss for terms in found), scale * of_policy + others, **EXACT)
    (gradient,) = torch.autograd.grad(sum(terms.means["pg_loss"] for terms in found), scores)
    assert (gradient[0] != 0).int().tolist() == kept
    assert not keeping.step_sums(batches[0])


def test_a_token_without_an_importance_weight_is_never_rejected_by_one() -> None:
    """w of all but the last token lies outside [0.5, 2], and only the second and third are stale: of a mean over four
    tokens two are left, each of them with half of it."""
    mask = torch.ones(4).double()
    old, engine = torch.full((4,), -1.0).double(), torch.tensor([-4.0, -4.0, 2.0, -1.0]).double()
    columns = {ADVANTAGES: torch.tensor([1.0, 10.0, 100.0, 1000.0]).double(), ROLLOUT_LOGPROBS: engine}
    columns |= {"old_logprobs": old, "is_current": torch.tensor([1.0, 0.0, 0.0, 1.0]).double()}
    inputs = LossInputs(mask, mask / 4, columns, lambda x: x.sum().expand(4))
    bounds = {"importance_low": 0.5, "importance_high": 2.0, "importance_tokens": ImportanceTokens.stale}
    chosen = objective(kl_coef=None, importance=Importance.mask, rejected_in_mean=False, **bounds)
    sums = chosen.step_sums(inputs)
    assert {name: float(value) for name, value in sums.items()} == {"weight": 1.0, "kept_weight": 0.5}
    scores = torch.stack([old, torch.zeros(4).double()]).requires_grad_()
    (gradient,) = torch.autograd.grad(chosen.loss(scores, dataclasses.replace(inputs, step_sums=sums)).loss, scores)
    assert gradient[0].tolist() == [-0.5, 0.0, 0.0, -500.0]


def test_an_entropy_bonus_raises_the_entropy() -> None:
    """d(-c H)/dH is -c, of each token with its weight."""
    columns = {ADVANTAGES: torch.zeros(2), ROLLOUT_LOGPROBS: torch.zeros(2), "old_logprobs": torch.zeros(2)}
    inputs = LossInputs(torch.ones(2), torch.tensor([0.25, 0.75]), columns, lambda x: x)
    scores = torch.zeros(2, 2).requires_grad_()
    terms = objective(kl_coef=None, entropy_coef=0.5).loss(scores, inputs)
    assert torch.autograd.grad(terms.loss, scores)[0][1].tolist() == [-0.125, -0.375]


def test_masked_tokens_take_no_part_in_what_is_rejected() -> None:
    """A mean over all tokens, or over none, would be another number."""
    columns = {
        ADVANTAGES: -torch.ones(4),
        ROLLOUT_LOGPROBS: torch.tensor([-1.0, 0, 0, 0]),
        "old_logprobs": torch.zeros(4),
    }
    inputs = LossInputs(
        torch.tensor([1.0, 0, 0, 0]), torch.tensor([1.0, 0, 0, 0]), columns, lambda x: x.sum().expand(4)
    )
    terms = objective(kl_coef=None, sequence_bound=2.5).loss(torch.zeros(2, 4), inputs)
    assert terms.token_sums["rejected_share"] == 1, "w is e, and e^(1/4) with what is masked"
