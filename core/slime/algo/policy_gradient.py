"""The common part of losses of policy optimisation: all but the surrogate, which weighs a token's advantage.

    L = E_t [ w_t surrogate_t ] - entropy_coef H + kl_coef KL(pi, ref)        w = pi_old / pi_engine

w corrects for tokens that another policy sampled: truncated importance sampling or IcePop (arXiv 2510.18855), which
make this the decoupled objective of 2110.00641. `slime.algo.losses` has each term.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from slime.config.choices import Importance, ImportanceTokens, KlEstimator, KlIn
from slime.objective import Column, LossInputs, LossTerms, Metrics, Source, TrainsOn
from slime.types import ADVANTAGES, IS_CURRENT, ROLLOUT_LOGPROBS

if TYPE_CHECKING:
    from torch import Tensor

OLD_LOGPROBS, REF_LOGPROBS = "old_logprobs", "ref_logprobs"
WEIGHT, KEPT_WEIGHT = "weight", "kept_weight"
"""Sums over an optimizer step, where what is rejected leaves the mean."""
OUTSIDE_SHARE = {Importance.truncate: "importance_truncated_share", Importance.mask: "importance_masked_share"}
"""The metric that counts the tokens whose importance ratio lay outside the bounds, by what was done with them."""
MEASURED_ON = {
    "logprob_diff_mean": "current_share",
    "logprob_diff_max": "current_share",
    "engine_kl": "current_share",
    "importance_ratio_mean": "corrected_share",
    "importance_ratio_max": "corrected_share",
}


class Surrogate(NamedTuple):
    """A term of [t] tokens, to be minimised."""

    loss: Tensor  # with gradient
    seen: Mapping[str, Tensor]  # by metric, a number for each token; the metric is the mean over loss tokens


@dataclass(frozen=True, kw_only=True)
class PolicyGradient(ABC):
    """The fields are keys of `algo`, documented in `slime.config.algorithm`.

    Metrics, of which those that were measured on no token are left out:

    - loss, pg_loss: as `algo.loss_mean` weighs tokens;
    - entropy, kl (to the reference), approx_kl (from the old policy): nats a loss token;
    - ratio_mean (to the old policy) and what `surrogate` saw: over loss tokens;
    - stale_share: of loss tokens that others than the current weights generated;
    - logprob_diff_mean, logprob_diff_max, engine_kl (engine against trainer, nats): over loss tokens of the current
      weights; with `rollout_logprobs_as_old` in the first optimizer step of a rollout alone, as later ones have no
      log-probs of the trainer from before the weights moved;
    - importance_ratio_mean, importance_ratio_max: over the tokens that are corrected; importance_truncated_share or
      importance_masked_share: over loss tokens;
    - rejected_share: of loss tokens, where sequences may be rejected.
    """

    entropy_coef: float
    kl_coef: float | None
    kl_in: KlIn
    kl_estimator: KlEstimator
    kl_unbiased: bool
    importance: Importance
    importance_tokens: ImportanceTokens | None
    importance_low: float
    importance_high: float
    sequence_bound: float | None
    sequence_veto: float | None
    opsm_bound: float | None
    rejected_in_mean: bool
    rollout_logprobs_as_old: bool
    trains_on = TrainsOn.rollouts

    @property
    @abstractmethod
    def sees(self) -> Sequence[str]:
        """Metrics of the surrogate."""

    @abstractmethod
    def surrogate(self, logprobs: Tensor, old: Tensor, inputs: LossInputs) -> Surrogate:
        """The surrogate from [t] log-probs: of the policy, with gradient, and `old` ones, from before the first step or
        of the engines (`rollout_logprobs_as_old`)."""

    @property
    def rejects(self) -> bool:
        return any(bound is not None for bound in (self.sequence_bound, self.sequence_veto, self.opsm_bound))

    @property
    def entropy_gradient(self) -> bool:
        """A subclass with a loss of its own may read entropies."""
        return self.entropy_coef != 0 or type(self).loss is not PolicyGradient.loss

    @property
    def needs(self) -> Sequence[Column]:
        rollout = (Column(ADVANTAGES), Column(ROLLOUT_LOGPROBS), Column(IS_CURRENT, optional=True))
        old = Column(OLD_LOGPROBS, Source.policy, optional=self.rollout_logprobs_as_old)
        reference = () if self.kl_coef is None else (Column(REF_LOGPROBS, Source.reference),)
        return *rollout, old, *reference

    @property
    def penalised_by(self) -> Collection[str]:
        return (self._old, REF_LOGPROBS) if self.kl_coef and self.kl_in is KlIn.reward else ()

    def penalties(self, columns: Mapping[str, Tensor]) -> Tensor:
        """kl_coef (log pi_old - log ref) of each token (arXiv 1909.08593, equation 2)."""
        assert self.kl_coef
        return self.kl_coef * (columns[self._old] - columns[REF_LOGPROBS])

    @property
    def _old(self) -> str:
        """The column that ratios compare with."""
        return ROLLOUT_LOGPROBS if self.rollout_logprobs_as_old else OLD_LOGPROBS

    def metrics(self, columns: Collection[str]) -> Metrics:
        means = ["entropy", *self.sees, "ratio_mean", "approx_kl", "stale_share"]
        means += ["kl"] * (REF_LOGPROBS in columns) + ["rejected_share"] * self.rejects
        if OLD_LOGPROBS not in columns:
            return Metrics(("loss", "pg_loss"), means)
        means, maxima = [*means, "logprob_diff_mean", "engine_kl", "current_share"], ["logprob_diff_max"]
        if not self.rollout_logprobs_as_old:
            means += ["importance_ratio_mean", "corrected_share", OUTSIDE_SHARE[self.importance]]
            maxima += ["importance_ratio_max"]
        return Metrics(("loss", "pg_loss"), means, maxima, MEASURED_ON)

    @property
    def early(self) -> Collection[Source]:
        return () if self.rejected_in_mean else (Source.policy,)

    def step_sums(self, inputs: LossInputs) -> Mapping[str, Tensor]:
        """The weights of all loss tokens, and of those that no correction known before the step rejects."""
        if self.rejected_in_mean:
            return {}
        from slime.algo.losses import importance_weights

        columns, kept = inputs.columns, self._kept_sequences(inputs)
        if self.importance is Importance.mask and not self.rollout_logprobs_as_old:
            log_weight = columns[OLD_LOGPROBS] - columns[ROLLOUT_LOGPROBS]
            bounds = {"low": self.importance_low, "high": self.importance_high}
            kept = kept * (1 - importance_weights(log_weight, self.importance, **bounds)[1] * self._corrected(inputs))
        weights = inputs.loss_weights.double()
        return {WEIGHT: weights.sum(), KEPT_WEIGHT: (weights * kept).sum()}

    def loss(self, scores: Tensor, inputs: LossInputs) -> LossTerms:
        from slime.algo.losses import kl_penalty, unbiased_kl

        (logprobs, entropy), columns = scores, inputs.columns
        old = columns[self._old]
        pg_loss, seen = self.surrogate(logprobs, old, inputs)
        counted = {"entropy": entropy.detach(), **seen, **_ratio_to_old((logprobs - old).detach())}
        sums = {name: inputs.count(value) for name, value in counted.items()}
        current = inputs.loss_mask * columns.get(IS_CURRENT, 1.0)
        sums["stale_share"] = (inputs.loss_mask - current).sum()
        maxima: dict[str, Tensor] = {}
        if self.rejects:
            kept = self._kept(logprobs.detach(), inputs)
            pg_loss, sums["rejected_share"] = pg_loss * kept, inputs.count(1 - kept)
        if OLD_LOGPROBS in columns:
            log_weight = columns[OLD_LOGPROBS] - columns[ROLLOUT_LOGPROBS]
            sums |= _engine_sums(log_weight * current, current)
            maxima["logprob_diff_max"] = (log_weight * current).abs().max()
            if not self.rollout_logprobs_as_old:
                pg_loss = pg_loss * self._correct(log_weight, self._corrected(inputs), sums, maxima)
        pg_loss = inputs.weighted(pg_loss)
        if not self.rejected_in_mean:
            whole, left = inputs.step_sums[WEIGHT], inputs.step_sums[KEPT_WEIGHT]
            pg_loss = pg_loss * (whole / left).where(left > 0, 1.0)
        loss = pg_loss - self.entropy_coef * inputs.weighted(entropy)
        if self.kl_coef is not None:
            estimator = KlEstimator.k1 if self.kl_in is KlIn.reward else self.kl_estimator
            kl = penalty = kl_penalty(logprobs - columns[REF_LOGPROBS], estimator)
            if self.kl_unbiased:
                penalty = unbiased_kl(kl, logprobs - old, estimator)
            sums["kl"] = inputs.count(kl.detach())
            if self.kl_coef and self.kl_in is KlIn.loss:
                loss = loss + self.kl_coef * inputs.weighted(penalty)
        return LossTerms(loss, {"loss": loss, "pg_loss": pg_loss}, sums, maxima)

    def _corrected(self, inputs: LossInputs) -> Tensor:
        """[t] 1 where a token has an importance weight."""
        corrects_all = self.importance_tokens is ImportanceTokens.all
        return inputs.loss_mask * (1.0 if corrects_all else 1 - inputs.columns.get(IS_CURRENT, 1.0))

    def _kept(self, logprobs: Tensor, inputs: LossInputs) -> Tensor:
        """[t] 1, or 0 where a token's sequence is rejected."""
        columns, kept = inputs.columns, self._kept_sequences(inputs)
        if self.opsm_bound is not None:
            distance = inputs.mean_by_sequence(columns[ROLLOUT_LOGPROBS] - logprobs)
            kept *= (columns[ADVANTAGES] >= 0) | (distance <= self.opsm_bound)
        return kept

    def _kept_sequences(self, inputs: LossInputs) -> Tensor:
        """[t] 1, or 0 by the bounds that are known before the step, so without `opsm_bound`."""
        columns, kept = inputs.columns, inputs.loss_mask.clone().fill_(1)
        if not self.rollout_logprobs_as_old:
            log_weight = columns[OLD_LOGPROBS] - columns[ROLLOUT_LOGPROBS]
            if self.sequence_bound is not None:
                kept *= inputs.mean_by_sequence(log_weight).abs() <= math.log(self.sequence_bound)
            if self.sequence_veto is not None:
                is_vetoed = inputs.loss_mask * (log_weight < math.log(self.sequence_veto))
                kept *= inputs.sum_by_sequence(is_vetoed) == 0
        return kept

    def _correct(
        self, log_weight: Tensor, corrected: Tensor, sums: dict[str, Tensor], maxima: dict[str, Tensor]
    ) -> Tensor:
        """[t] factors of the policy loss: importance weights where `corrected` is 1, else 1; adds their metrics.

        Args:
            log_weight: [t] log-prob of the trainer minus the engine's of the same token.
        """
        from slime.algo.losses import bounded_ratio, importance_weights

        weights, is_outside = importance_weights(
            log_weight, self.importance, low=self.importance_low, high=self.importance_high
        )
        ratio = bounded_ratio(log_weight) * corrected
        sums["corrected_share"], sums["importance_ratio_mean"] = corrected.sum(), ratio.sum()
        sums[OUTSIDE_SHARE[self.importance]] = (is_outside * corrected).sum()
        maxima["importance_ratio_max"] = ratio.max()
        return weights.where(corrected > 0, 1.0)


def _ratio_to_old(log_ratio: Tensor) -> dict[str, Tensor]:
    """`approx_kl` estimates KL(old || new)."""
    from slime.algo.losses import MAX_LOG_RATIO

    bounded = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {"ratio_mean": bounded.exp(), "approx_kl": bounded.expm1() - bounded}


def _engine_sums(log_weight: Tensor, current: Tensor) -> dict[str, Tensor]:
    """How far the trainer's log-probs lie from the engine's where both had the same weights.

    `engine_kl` estimates KL(engine || trainer) from the engine's samples (k3 of Schulman 2020). `current_share` is what
    these sums are over.
    """
    from slime.algo.losses import MAX_LOG_RATIO

    bounded = log_weight.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return {
        "logprob_diff_mean": log_weight.abs().sum(),
        "engine_kl": (bounded.expm1() - bounded).sum(),
        "current_share": current.sum(),
    }
