"""Better ways out of a config's problems, and what a plugin for them implements (hook `slime_advisers`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from slime.config.schema import SlimeConfig
from slime.errors import SlimeError

Rules = Callable[[SlimeConfig], Sequence[SlimeError]]
"""What is wrong with a config whose values are not derived yet."""


class Adviser(Protocol):
    """Looks for values that the plan takes. `slime-tools` is the one of this repository."""

    def __call__(self, problems: Sequence[SlimeError], given: SlimeConfig, rules: Rules) -> Sequence[SlimeError]:
        """The same problems in the same order, some with another `todo`.

        Args:
            given: the config before its values were derived, each within its bounds.
        """
