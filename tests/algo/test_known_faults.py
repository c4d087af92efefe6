"""What published trainers have got wrong in losses and advantages, by their issue, and the tests that exclude it here.

`EXCLUDED` names a test for each. Those of corrections with three policies stand below: the trained one (pi), the
one before the first optimizer step (pi_old) and the engine's. Each correction is about two of them, and where two are
alike a wrong one is not seen.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from itertools import chain, permutations
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import Tensor

from slime.algo.policy_gradient import PolicyGradient
from slime.algo.stages import objective_of
from slime.config.choices import Importance, ImportanceTokens, KlEstimator
from slime.config.schema import AlgoConfig
from slime.objective import LossInputs
from slime.types import ADVANTAGES, IS_CURRENT, ROLLOUT_LOGPROBS

ROOT = Path(__file__).parents[2]
HERE, PLUGINS = "tests/algo/test_known_faults.py", "plugins/algorithms/tests"
POLICY, LOSSES = "tests/algo/test_policy_gradient.py", f"{PLUGINS}/policy_losses/test_objectives.py"
ESTIMATORS, RETURNS = f"{PLUGINS}/policy_losses/test_estimators.py", f"{PLUGINS}/ppo/test_returns.py"
PACKING, CONTRACT = "tests/train/test_packing.py", "plugins/testing/tests/test_objectives.py"

EXCLUDED: Mapping[str, Sequence[str]] = {
    "ms-swift #10117, TRL #5619 and #4935: the loss depends on how a batch is cut": [
        f"{PACKING}::test_the_sum_of_weighted_losses_is_the_mean_whatever_the_packing",
        f"{CONTRACT}::test_the_objectives_of_slime_keep_the_contract",
        f"{CONTRACT}::test_a_wrong_one_is_found",
        f"{LOSSES}::test_they_keep_the_contract",
    ],
    "TRL #3823: GSPO's loss of a sequence is multiplied by its length": [
        f"{LOSSES}::test_gspo_for_tokens_is_gspo_for_sequences"
    ],
    "ROLL #165: the mean of a sequence is a sum over its tokens": [
        f"{PACKING}::test_the_sum_of_weighted_losses_is_the_mean_whatever_the_packing"
    ],
    "Fast-LLM #556: GSPO is not tested under sequence parallelism": [f"{LOSSES}::test_they_keep_the_contract"],
    "NeMo-RL #2269: GSPO with importance weights takes their product over the sequence": [
        f"{HERE}::test_a_long_sequence_of_gspo_has_the_importance_weights_of_its_tokens"
    ],
    "THUDM/slime #657: whether what is rejected keeps its place in the mean is not said": [
        f"{POLICY}::test_rejected_sequences_have_no_policy_loss_and_keep_their_place_in_the_mean",
        f"{POLICY}::test_a_mean_over_what_is_left_is_that_of_a_step_without_the_rejected",
    ],
    "THUDM/slime #179: importance weights compare the engine with the policy that is trained": [
        f"{HERE}::test_a_correction_compares_the_two_policies_that_it_is_about"
    ],
    "verl #3245: a weight for each token spreads over a loss of sequences": [
        f"{HERE}::test_the_importance_weight_of_a_token_touches_no_other"
    ],
    "verl, id2mean: a lone sample has its raw reward as advantage": [
        f"{ESTIMATORS}::test_a_lone_sample_is_refused_where_it_would_have_its_raw_reward",
        "tests/sampling/test_samples.py::test_a_group_left_with_one_sample_teaches_nothing_and_is_counted",
    ],
    "THUDM/slime, verl: the KL estimate is bounded once it is multiplied with the ratio": [
        f"{HERE}::test_the_bound_of_an_unbiased_penalty_stands_before_its_ratio"
    ],
    "TRL #6503, OpenRLHF #1309, THUDM/slime #1039, verl's k3+: KL penalties whose gradient is another one off-policy": [
        f"{POLICY}::test_an_unbiased_penalty_has_the_gradient_of_the_reverse_divergence",
        f"{POLICY}::test_what_others_have_taken_for_it_is_another_gradient",
    ],
    "miles #1827: the reward at a masked last token is lost or discounted": [
        f"{PLUGINS}/ppo/test_gae.py::test_the_reward_stands_at_the_last_loss_token_of_each_segment",
        f"{RETURNS}::test_the_step_is_the_papers_over_loss_tokens_whitened",
    ],
    "ROLL #447: values of masked tokens change advantages": [f"{RETURNS}::test_values_of_masked_tokens_are_never_read"],
    "verl #7300: a span of observations ends REINFORCE++'s return": [
        f"{ESTIMATORS}::test_a_discount_counts_the_loss_tokens_that_follow",
        "tests/sampling/test_samples.py::test_advantages_of_tokens_are_those_of_loss_tokens_over_all_segments",
    ],
    "THUDM/slime: whitening sees the tokens of one rank": [
        f"{ESTIMATORS}::test_reinforce_pp_whitens_returns_over_the_tokens_of_the_step",
        f"{PLUGINS}/ppo/test_critic.py::test_every_layout_learns_the_same",
    ],
    "THUDM/slime: off-policy sequence masking compares with the trainer's old policy": [
        f"{HERE}::test_a_correction_compares_the_two_policies_that_it_is_about"
    ],
}


@pytest.mark.parametrize("named", sorted(set(chain.from_iterable(EXCLUDED.values()))))
def test_what_excludes_a_fault_is_there(named: str) -> None:
    file, _, name = named.partition("::")
    functions = [node.name for node in ast.parse((ROOT / file).read_text()).body if isinstance(node, ast.FunctionDef)]
    assert name in functions


EXACT: Mapping[str, Any] = {"rtol": 1e-12, "atol": 1e-14}
"""Float64 on both sides: a dozen products and exponents."""
Rows = Sequence[Sequence[float]]
PI: Rows = [[-1.1, -0.9, -1.6], [-0.3, -2.5], [-1.9, -0.6, -0.8, -1.0], [-2.2]]
OLD: Rows = [[-1.3, -0.4, -1.2], [-0.9, -1.4], [-1.2, -0.5, -1.9, -0.7], [-1.1]]
ENGINE: Rows = [[-0.7, -0.8, -2.0], [-0.6, -0.5], [-1.0, -1.3, -0.9, -1.6], [-2.3]]
SIGNS = [-1.0, -2.0, 0.7, -0.4]
"""Of four sequences the log-probs under the three policies, and the advantages."""
OBJECTIVES = ("grpo", "gspo", "cispo", "sapo")


def objective(name: str, **algo: Any) -> PolicyGradient:
    """With clips that are far away and importance weights of all tokens."""
    keys = {"clip_low": 0.99, "clip_high": 99.0, "importance_tokens": ImportanceTokens.all, **algo}
    made = objective_of(AlgoConfig(name=name, **keys))
    assert isinstance(made, PolicyGradient)
    return made


def double(rows: Rows) -> Tensor:
    return torch.tensor([value for row in rows for value in row], dtype=torch.float64)


def inputs_of(old: Rows, engine: Rows, signs: Sequence[float], **columns: Tensor) -> LossInputs:
    """Sequences of loss tokens alone, each token of weight 1."""
    sizes = [len(row) for row in old]

    def sums(values: Tensor) -> Tensor:
        return torch.stack([part.sum() for part in values.split(sizes)]).repeat_interleave(torch.tensor(sizes))

    advantages = double([[sign] * size for sign, size in zip(signs, sizes, strict=True)])
    found = {ADVANTAGES: advantages, ROLLOUT_LOGPROBS: double(engine), "old_logprobs": double(old), **columns}
    return LossInputs(torch.ones_like(advantages), torch.ones_like(advantages), found, sums)


def gradient_of(chosen: PolicyGradient, inputs: LossInputs, pi: Rows = PI) -> Tensor:
    """[t] of the loss, in the log-probs."""
    logprobs = double(pi).requires_grad_()
    terms = chosen.loss(torch.stack([logprobs, torch.zeros_like(logprobs)]), inputs)
    return torch.autograd.grad(terms.loss, logprobs)[0]


def slope_of(chosen: PolicyGradient, inputs: LossInputs, pi: Rows = PI) -> Tensor:
    """[t] of what the objective makes of each token before corrections, of which others test the formula."""
    logprobs = double(pi).requires_grad_()
    surrogate = chosen.surrogate(logprobs, inputs.columns["old_logprobs"], inputs).loss
    return torch.autograd.grad(surrogate.sum(), logprobs)[0]


def factors(algo: Mapping[str, Any], pi: Rows, old: Rows, engine: Rows) -> list[list[float]]:
    """What each token's loss is multiplied with, in Python floats: the papers' formulas."""
    low, high = algo.get("importance_low", 0.0), algo.get("importance_high", 2.0)
    found = []
    for of_pi, of_old, of_engine, sign in zip(pi, old, engine, SIGNS, strict=True):
        apart = [before - sampled for before, sampled in zip(of_old, of_engine, strict=True)]
        drift = fmean(sampled - now for sampled, now in zip(of_engine, of_pi, strict=True))
        ratios, kept = [math.exp(x) for x in apart], 1.0
        if "sequence_bound" in algo and abs(fmean(apart)) > math.log(algo["sequence_bound"]):
            kept = 0.0
        if "sequence_veto" in algo and min(ratios) < algo["sequence_veto"]:
            kept = 0.0
        if "opsm_bound" in algo and sign < 0 and drift > algo["opsm_bound"]:
            kept = 0.0
        if algo.get("importance") is Importance.mask:
            weights = [ratio if low <= ratio <= high else 0.0 for ratio in ratios]
        else:
            weights = [min(max(ratio, low), high) for ratio in ratios]
        found.append([kept * weight for weight in weights])
    return found


CORRECTIONS: Sequence[dict[str, Any]] = [
    {"importance": Importance.truncate, "importance_low": 0.5, "importance_high": 1.4},
    {"importance": Importance.mask, "importance_low": 0.5, "importance_high": 3.0},
    {"sequence_bound": 1.3},
    {"sequence_veto": 0.5},
    {"opsm_bound": 0.2},
    {"opsm_bound": 0.2, "sequence_bound": 2.0, "importance": Importance.mask, "importance_high": 3.0},
]


@pytest.mark.parametrize("name", OBJECTIVES)
@pytest.mark.parametrize("algo", CORRECTIONS, ids=lambda algo: "-".join(algo))
def test_a_correction_compares_the_two_policies_that_it_is_about(name: str, algo: dict[str, Any]) -> None:
    """With the three policies in any other order the factors are other ones."""
    wanted = factors(algo, PI, OLD, ENGINE)
    assert all(factors(algo, *order) != wanted for order in list(permutations([PI, OLD, ENGINE]))[1:])
    chosen, inputs = objective(name, **algo), inputs_of(OLD, ENGINE, SIGNS)
    found = gradient_of(chosen, inputs)
    torch.testing.assert_close(found, slope_of(chosen, inputs) * double(wanted), **EXACT)
    assert found.any()


@pytest.mark.parametrize("name", OBJECTIVES)
def test_the_importance_weight_of_a_token_touches_no_other(name: str) -> None:
    """The weight of one token doubles, and its gradient alone, also where the ratio is that of a sequence."""
    chosen = objective(name, importance_high=100.0)
    shifted = [list(row) for row in ENGINE]
    shifted[2][1] -= math.log(2)
    before, after = (gradient_of(chosen, inputs_of(OLD, engine, SIGNS)) for engine in (ENGINE, shifted))
    doubled = torch.ones_like(before)
    doubled[len(ENGINE[0]) + len(ENGINE[1]) + 1] = 2
    torch.testing.assert_close(after, before * doubled, **EXACT)


def test_a_long_sequence_of_gspo_has_the_importance_weights_of_its_tokens() -> None:
    """Two hundred tokens of w = e^-0.014: their product is 0.06, and each has 0.986."""
    old, engine = [[-1.014] * 200], [[-1.0] * 200]
    chosen, inputs = objective("gspo"), inputs_of(old, engine, [-1.0])
    found, plain = gradient_of(chosen, inputs, old), slope_of(chosen, inputs, old)
    torch.testing.assert_close(found, plain * math.exp(-0.014), **EXACT)
    assert plain.all()
    assert math.exp(-0.014 * 200) < 0.061


@pytest.mark.parametrize("name", OBJECTIVES)
def test_tokens_of_the_current_weights_are_left_alone_unless_all_are_corrected(name: str) -> None:
    is_current = torch.arange(10, dtype=torch.float64) % 2
    inputs = inputs_of(OLD, ENGINE, SIGNS, **{IS_CURRENT: is_current})
    chosen = objective(name, importance_tokens=ImportanceTokens.stale)
    weights = double(factors({}, PI, OLD, ENGINE)).where(is_current == 0, 1.0)
    torch.testing.assert_close(gradient_of(chosen, inputs), slope_of(chosen, inputs) * weights, **EXACT)


def test_the_bound_of_an_unbiased_penalty_stands_before_its_ratio() -> None:
    """The estimate is at most 10 nats, and r = 3 makes 3 times as much of it. A bound behind r would give 10, with no
    gradient."""
    pi, old, reference = [[-4.0]], [[-4.0 - math.log(3)]], [[-1.8]]
    inputs = inputs_of(old, old, [0.0], ref_logprobs=double(reference))
    chosen = objective("grpo", kl_coef=1.0, kl_estimator=KlEstimator.low_var_kl, kl_unbiased=True)
    logprobs = double(pi).requires_grad_()
    terms = chosen.loss(torch.stack([logprobs, torch.zeros_like(logprobs)]), inputs)
    log_ratio = -4.0 + 1.8
    estimate = math.exp(-log_ratio) - 1 + log_ratio
    assert estimate < 10 < 3 * estimate
    assert terms.loss.item() == pytest.approx(3 * estimate, rel=1e-12)
    (found,) = torch.autograd.grad(terms.loss, logprobs)
    assert found.item() == pytest.approx(3 * estimate + 3 * (1 - math.exp(-log_ratio)), rel=1e-12)
