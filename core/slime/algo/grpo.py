"""Group relative policy optimisation: PPO's clipped loss with advantages of groups (arXiv 2402.03300, equation 3).

    surrogate_t = max(-r_t A_t, -clip(r_t, 1 - low, 1 + high) A_t)        r = pi / pi_old

With other keys it is also DAPO (clip-higher, token mean; arXiv 2503.14476), dual-clip PPO (1912.09729), and Dr. GRPO
(2503.20783).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slime.algo.policy_gradient import PolicyGradient, Surrogate
from slime.objective import LossInputs
from slime.types import ADVANTAGES

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Grpo(PolicyGradient):
    """Metrics beside those of `PolicyGradient`: clip_fraction and its two parts are shares of loss tokens."""

    clip_low: float
    clip_high: float
    clip_dual: float | None
    sees = ("clip_fraction", "clip_low_fraction", "clip_high_fraction")

    def surrogate(self, logprobs: Tensor, old: Tensor, inputs: LossInputs) -> Surrogate:
        from slime.algo.losses import policy_loss

        advantages = inputs.columns[ADVANTAGES]
        loss, clips = policy_loss(
            logprobs - old, advantages, clip_low=self.clip_low, clip_high=self.clip_high, clip_dual=self.clip_dual
        )
        shares = (clips.low + clips.high + clips.dual, clips.low, clips.high)
        return Surrogate(loss, dict(zip(self.sees, shares, strict=True)))
