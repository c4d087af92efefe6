"""What a version of the weights moves in a run, and how long that takes, for `slime plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.sizes.estimate import PlanPart
    from slime.sizes.model import ModelSizes


@hookimpl
def slime_plan_parts() -> Mapping[str, Callable[..., PlanPart]]:
    return {"publish": _publishing}


def _publishing(sizes: ModelSizes) -> PlanPart:
    from slime_tools.publish.part import Publishing

    return Publishing(sizes)
