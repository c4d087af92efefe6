"""The nearest sizes of trainers and engines that a plan takes, as the way out of those that it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.compose.check import Rules
    from slime.config.schema import SlimeConfig
    from slime.errors import SlimeError


@hookimpl
def slime_advisers() -> Mapping[str, Callable[..., Sequence[SlimeError]]]:
    return {"nearest": _nearest}


def _nearest(problems: Sequence[SlimeError], given: SlimeConfig, rules: Rules) -> Sequence[SlimeError]:
    from slime_tools.nearest.nearest import with_ways_out

    return with_ways_out(problems, given, rules)
