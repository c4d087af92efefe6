"""Overlong shaping: a response that comes near its limit is punished, more with each token.

Source: DAPO (Yu et al. 2025, arXiv 2503.14476), section 3.4, equation 13. A response that is cut off at the limit may
be right so far, and its reward says nothing of that; a penalty that grows before the limit tells the model to be brief.
"""

from __future__ import annotations

from dataclasses import dataclass

from slime.types import Decision, Group


@dataclass
class Overlong:
    """Takes up to `penalty` off the reward of long responses; drops only groups that have no advantage."""

    max_response_tokens: int
    """Length at which the penalty is whole: `${rollout.sampling.max_response_tokens}` is usual."""
    soft_tokens: int
    """Tokens before that length over which it grows; DAPO has 4096 of 20480."""
    penalty: float = 1.0
    """What is taken off the reward of a response of `max_response_tokens` or more."""

    def __post_init__(self) -> None:
        limit, soft = self.max_response_tokens, self.soft_tokens
        if not 0 < soft <= limit:
            raise ValueError(f"soft_tokens is {soft}, not above 0 and at most max_response_tokens={limit}")

    def shape(self, group: Group) -> list[float]:
        """The penalty of each sample, 0 or below, by the number of its sampled tokens."""
        return [-self.penalty * self._share(sample.num_sampled) for sample in group.samples]

    def decide(self, group: Group) -> Decision:
        """Keep, or drop as `too_few_values`: of several samples two have to have a value, of one its own."""
        if len(group.rewards) < min(2, len(group.samples)):
            return Decision(keep=False, reason="too_few_values")
        return Decision(keep=True)

    def _share(self, length: int) -> float:
        return min(max(length - self.max_response_tokens + self.soft_tokens, 0) / self.soft_tokens, 1.0)
