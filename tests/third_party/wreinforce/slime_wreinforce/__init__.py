"""An objective: `slime ... algo=w_reinforce algo.options.positive=0.1`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slime.algo.policy_gradient import PolicyGradient, Surrogate
from slime.hookspecs import hookimpl
from slime.objective import Objective
from slime.types import ADVANTAGES


@dataclass(frozen=True, kw_only=True)
class WReinforce(PolicyGradient):
    """Weighted REINFORCE (arXiv 2506.01347): -w A log pi, with w = `positive` where A > 0 and 1 elsewhere. What was bad
    is unlearnt, and what was good hardly narrows the policy. GRPO's other parts come with the base class."""

    positive: float = 0.1

    @property
    def sees(self) -> Sequence[str]:
        return ("positive_share",)

    def surrogate(self, logprobs: Any, old: Any, inputs: Any) -> Surrogate:
        advantages = inputs.columns[ADVANTAGES]
        is_positive = (advantages > 0).to(advantages.dtype)
        weights = 1 - (1 - self.positive) * is_positive
        return Surrogate(-weights * advantages * logprobs, {"positive_share": is_positive})


@hookimpl
def slime_objectives() -> Mapping[str, Callable[..., Objective]]:
    return {"w_reinforce": WReinforce}
