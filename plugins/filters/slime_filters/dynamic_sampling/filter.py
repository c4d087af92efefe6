"""Dynamic sampling: train only on prompts that the model sometimes solves and sometimes does not.

Source: DAPO (Yu et al. 2025, arXiv 2503.14476), section 3.2: a group whose samples all have the same reward has
advantage 0 everywhere, so it adds nothing to the gradient and only makes the batch smaller. Such groups are dropped
and the rollout goes on sampling until the batch is full.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slime.types import Decision, Group


@dataclass
class DynamicSampling:
    """Keeps a group whose rewards differ; drops it as too_few_values, all_correct, all_wrong, zero_std or low_std."""

    min_std: float = 0.0
    """Drop a group whose rewards have a standard deviation (population) of at most this; 0 drops equal rewards only."""
    min_values: int = 2
    """Drop a group with fewer samples that have a reward value."""
    correct_value: float = 1.0
    """The reward of a right answer: equal rewards of at least this are counted as `all_correct`."""
    wrong_value: float = 0.0
    """The reward of a wrong answer: equal rewards of at most this are counted as `all_wrong` (DAPO's own is -1)."""

    def decide(self, group: Group) -> Decision:
        """Keep, or drop with one of the reasons above, by the rewards before other filters changed them. Samples
        without a value are left out, as in training."""
        from statistics import pstdev  # takes as long to import as all of slime's own modules that `--help` needs

        rewards = group.raw_rewards
        if len(rewards) < max(self.min_values, 2):
            return Decision(keep=False, reason="too_few_values")
        if min(rewards) == max(rewards):
            return Decision(keep=False, reason=self._reason(rewards))
        if pstdev(rewards) <= self.min_std:
            return Decision(keep=False, reason="low_std")
        return Decision(keep=True)

    def _reason(self, equal: Sequence[float]) -> str:
        if equal[0] >= self.correct_value:
            return "all_correct"
        return "all_wrong" if equal[0] <= self.wrong_value else "zero_std"
