"""Ray for a slime run: started here and on the run's other hosts, or joined where it is, and gone with the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.cluster.ray_starter import RayStarter


@hookimpl
def slime_ray_starters() -> Mapping[str, Callable[[], RayStarter]]:
    return {"ray": _starter}


def _starter() -> RayStarter:
    from slime_cluster.ray.starter import Starter

    return Starter()
