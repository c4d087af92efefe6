"""How long trainers of a run wait for each other in a step, for `slime plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.sizes.estimate import PlanPart
    from slime.sizes.model import ModelSizes


@hookimpl
def slime_plan_parts() -> Mapping[str, Callable[..., PlanPart]]:
    return {"bubbles": _bubbles}


def _bubbles(sizes: ModelSizes) -> PlanPart:
    from slime_tools.bubbles.part import Waiting

    return Waiting(sizes)
