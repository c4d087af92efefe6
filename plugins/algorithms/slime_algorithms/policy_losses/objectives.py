"""What each loss makes of a token's advantage A. r = pi / pi_old; sg[x] is x without gradient.

Importance weights, entropy bonus and KL penalty are `slime.algo.policy_gradient.PolicyGradient`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.algo.policy_gradient import PolicyGradient, Surrogate
from slime.objective import LossInputs
from slime.types import ADVANTAGES, ROLLOUT_LOGPROBS

if TYPE_CHECKING:
    from torch import Tensor

    from slime.config.schema import TrainConfig


@dataclass(frozen=True, kw_only=True)
class Gspo(PolicyGradient):
    """Group sequence policy optimisation, in the form for tokens (arXiv 2507.18071, equations 13 and 14).

        -min(s A, clip(s, 1 - low, 1 + high) A)        s = sg[exp(mean over the sequence of log r)] pi / sg[pi]

    All tokens of a sequence have the same ratio, so they are clipped together or not at all. Of its metrics,
    clip_fraction is the share of loss tokens that were.
    """

    clip_low: float
    clip_high: float

    sees = ("clip_fraction",)

    def surrogate(self, logprobs: Tensor, old: Tensor, inputs: LossInputs) -> Surrogate:
        from slime.algo.losses import policy_loss

        detached = logprobs.detach()
        log_ratio = inputs.mean_by_sequence(detached - old) + logprobs - detached
        loss, clips = policy_loss(
            log_ratio, inputs.columns[ADVANTAGES], clip_low=self.clip_low, clip_high=self.clip_high
        )
        return Surrogate(loss, {"clip_fraction": clips.low + clips.high + clips.dual})


@dataclass(frozen=True, kw_only=True)
class Cispo(PolicyGradient):
    """Clipped importance-sampling weights (arXiv 2506.13585, equation 4, without its lower bound).

        -sg[min(r, 1 + high)] A log pi

    No token loses its gradient. Of its metrics, clip_fraction is the share of loss tokens whose weight was bounded.
    """

    clip_high: float

    sees = ("clip_fraction",)

    def surrogate(self, logprobs: Tensor, old: Tensor, inputs: LossInputs) -> Surrogate:
        from slime.algo.losses import bounded_ratio

        ratio, bound = bounded_ratio(logprobs.detach() - old), 1 + self.clip_high
        loss = -ratio.clamp(max=bound) * inputs.columns[ADVANTAGES] * logprobs
        return Surrogate(loss, {"clip_fraction": (ratio > bound).to(ratio.dtype)})


@dataclass(frozen=True, kw_only=True)
class Sapo(PolicyGradient):
    """Soft adaptive policy optimisation (arXiv 2511.20347, equations 5 and 6).

        -(4 / tau) sigmoid(tau (r - 1)) A

    Its slope in r is 1 at r = 1 and falls smoothly on both sides, where a clip has an edge.

    Args:
        tau_positive, tau_negative: how fast it falls, for A > 0 and for all others.
    """

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def idle_options(self, train: TrainConfig) -> Mapping[str, str]:
        """At r = 1 the slope is 1, whatever tau is."""
        from slime.algo.stages import ONE_STEP

        is_idle = train.optimizer_steps == 1 and not self.rollout_logprobs_as_old
        return dict.fromkeys(("tau_positive", "tau_negative"), ONE_STEP) if is_idle else {}

    sees = ()

    def surrogate(self, logprobs: Tensor, old: Tensor, inputs: LossInputs) -> Surrogate:
        import torch

        from slime.algo.losses import bounded_ratio

        advantages = inputs.columns[ADVANTAGES]
        tau = torch.full_like(advantages, self.tau_negative).masked_fill(advantages > 0, self.tau_positive)
        gate = 4 / tau * torch.sigmoid(tau * (bounded_ratio(logprobs - old) - 1))
        return Surrogate(-gate * advantages, {})


@dataclass(frozen=True, kw_only=True)
class Dppo(PolicyGradient):
    """Divergence PPO with the total variation of the sampled token (arXiv 2602.04879), and a pull to the engine.

        -r A, or 0 where pi - pi_engine > bound and A > 0, or < -bound and A < 0;  + pull (log pi - log pi_engine)^2

    A ratio says little of an unlikely token; the difference of probabilities is what moves a distribution. Of its
    metrics, masked_fraction is the share of loss tokens without a policy gradient.

    Args:
        bound: of the difference of probabilities.
        pull: weight of the squared difference of log-probs.
    """

    bound: float = 0.2
    pull: float = 1e-3

    sees = ("masked_fraction",)

    def surrogate(self, logprobs: Tensor, old: Tensor, inputs: LossInputs) -> Surrogate:
        from slime.algo.losses import bounded_ratio

        advantages, engine = inputs.columns[ADVANTAGES], inputs.columns[ROLLOUT_LOGPROBS]
        moved = logprobs.detach().exp() - engine.exp()
        is_masked = (moved * advantages.sign() > self.bound).to(moved.dtype)
        loss = -bounded_ratio(logprobs - old) * advantages * (1 - is_masked)
        return Surrogate(loss + self.pull * (logprobs - engine).square(), {"masked_fraction": is_masked})
