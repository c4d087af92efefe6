"""The section `algo` of `slime.config.schema`: what is learnt from a rollout."""

from __future__ import annotations

from dataclasses import dataclass

from slime.config.choices import Importance, ImportanceTokens, KlEstimator, LossMean


@dataclass
class AlgoConfig:
    name: str = "grpo"
    """grpo: supervised stage if configured, then reinforcement learning; sft: the supervised stage only."""
    normalize_std: bool = True
    """Divide group-centred rewards by the group's standard deviation (GRPO). Dr. GRPO is false here and
    `loss_mean: constant`."""
    clip_low: float = 0.2
    """PPO clip: the ratio of a token's probability to that under the old policy is clipped below at 1 - clip_low. With
    one optimizer step a rollout the old policy is the current one, the ratio 1, and nothing is clipped."""
    clip_high: float = 0.28
    """PPO clip: the same ratio is clipped above at 1 + clip_high."""
    clip_dual: float | None = None
    """Dual-clip bound c > 1 for negative advantages; empty switches it off."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus."""
    kl_coef: float | None = None
    """Weight of the KL penalty against the reference model, the one that reinforcement learning starts from; 0 only
    measures the divergence; empty keeps no reference model."""
    kl_estimator: KlEstimator = KlEstimator.low_var_kl
    """Estimate of KL(pi, ref) from samples of pi (Schulman 2020), with r = ref / pi. As a penalty, what counts is the
    gradient that it has in expectation. k2 = (log r)^2 / 2: that of the reverse divergence KL(pi, ref). k3 = r - 1 -
    log r: that of the forward one, KL(ref, pi). low_var_kl: k3, at most 10 (beyond it a token has no gradient). k1 =
    -log r: zero, so it can only measure (`kl_coef: 0`)."""
    loss_mean: LossMean = LossMean.token
    """What the sum of a step's token losses is divided by. token: all loss tokens of the step; sample: those of the
    token's sample, times samples; constant: samples x `rollout.sampling.max_response_tokens`, whatever the lengths
    (Dr. GRPO; demonstrations are weighted as with token). Groups whose rewards are all equal have advantage 0 and
    still count, unless a filter drops them."""
    importance: Importance = Importance.truncate
    """How the policy loss of a token is corrected that another policy than the trainer's sampled: it is multiplied with
    w = pi_old / pi_engine, of which the engine recorded its part. truncate: w clipped to [`importance_low`,
    `importance_high`] (truncated importance sampling); mask: no loss where w lies outside (IcePop: 0.5 to 5); the token
    keeps its place in `loss_mean`. KL penalty and entropy bonus are not weighted."""
    importance_tokens: ImportanceTokens = ImportanceTokens.stale
    """stale: the tokens that older weights generated, which come with `rollout.over_sampling` above 1; all: the others
    too, whose w differs from 1 by the numerical difference of engine and trainer alone (worth it in low precision or
    with experts; elsewhere it adds noise)."""
    importance_low: float = 0.0
    """Lower bound of w, at most 1."""
    importance_high: float = 2.0
    """Upper bound of w, at least 1."""
    rollout_logprobs_as_old: bool = False
    """Use the engine's log-probs as the old policy instead of the trainer's. The PPO ratio is then the one to what
    sampled the token, stale or not, and no importance weight is added."""
