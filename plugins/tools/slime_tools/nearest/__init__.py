"""The nearest sizes of trainers and engines that a plan takes, as the way out of those that it does not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.compose.check import Adviser


@hookimpl
def slime_advisers() -> Mapping[str, Callable[[], Adviser]]:
    return {"nearest": _nearest}


def _nearest() -> Adviser:
    from slime_tools.nearest.nearest import with_ways_out

    return with_ways_out
