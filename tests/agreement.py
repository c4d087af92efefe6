"""How far an engine's and the trainer's log-probs may be apart: what is measured, and what explains it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

TWO_SIDES = 2.0
"""What both sides' rounding may cost, as a multiple of what it costs the trainer: differences from an fp32 trainer of
the same weights. Were they as large and independent it would be sqrt(2), as measured between transformers and the
trainer in bf16 (1.3 with 256 experts). The engine rounds a little more, some families' scores of experts too. Most of
it are experts that score almost the same, of which rounding chooses another: with fp32's choices the means of the
two largest models, 0.035 and 0.077, become 0.011 and 0.010. So a fixed tolerance would be as loose as the worst
family; a stale router costs twenty times the rounding.

Under FP8 the trainer computes with the engine's weights and rounds activations as it does. Once their inputs are apart
by bf16's rounding, the two round them to other numbers: what that costs the trainer counts as rounding."""
FEW, FEWER = 0.9, 0.95
"""Quantiles of differences from the engine and from fp32. Either side's rounding changes few tokens much, so that both
together change twice as many."""
FLOOR = 1e-4
"""Nats: what the order of sums costs where nothing is rounded, with fp32 on both sides."""
CONTROL = 1.5
"""Attending to all keys must cost at least this many times what the choice of keys costs, or the comparison shows
nothing."""


class Agreement(NamedTuple):
    """One line of the table: absolute differences over `num_tokens` sampled tokens, in nats.

    Where the engine chooses keys, by scores in fp8, the trainer rounds what it scores as the engine does.

    Attributes:
        mean, high, max: between engine and trainer; `high` is their quantile `FEW`.
        rounding, high_rounding: between the trainer in its precision and in fp32; mean and quantile `FEWER`.
        causes: of the mean, by the installed explanations: under FP8 (`slime-megatron`), and of experts where
            engines record theirs (`slime-megatron`); otherwise empty.
        own_keys: the mean between engine and trainer, had the trainer chosen keys as in training.
        control: the same, had it attended to all keys; both None where it does so anyway.
    """

    model: str
    family: str
    sequences: str
    num_tokens: int
    mean: float
    high: float
    max: float
    rounding: float
    high_rounding: float
    causes: Mapping[str, float]
    own_keys: float | None = None
    control: float | None = None

    def problem(self) -> str:
        """What is wrong with it, empty if nothing is."""
        name = f"{self.model} {self.sequences}".strip()
        if "rest" in self.causes:
            rest, limit = self.causes["rest"], TWO_SIDES * (self.rounding + self.causes.get("activations", 0.0)) + FLOOR
            return "" if rest <= limit else f"{name}: FP8 does not explain {rest:.4f}, rounding {limit:.4f}"
        pairs = {"mean": (self.mean, self.rounding), f"quantile {FEW}": (self.high, self.high_rounding)}
        for kind, (value, rounding) in pairs.items():
            if not value <= (limit := TWO_SIDES * rounding + FLOOR):
                return f"{name}: log-probs differ by {value:.4f} ({kind}), rounding explains {limit:.4f}"
        if self.control is not None and self.control < CONTROL * self.mean:
            return f"{name}: attending to all keys costs {self.control:.4f}, the choice itself {self.mean:.4f}"
        return ""
