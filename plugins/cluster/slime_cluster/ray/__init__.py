"""Ray for a slime run: started here and on the run's other hosts, or joined where it is, and gone with the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from slime.cluster.ray_starter import RayHere
    from slime.topology.topology import Topology


@hookimpl
def slime_ray_starters() -> Mapping[str, Callable[..., AbstractContextManager[RayHere]]]:
    return {"ray": _here}


def _here(topology: Topology, run: Path | None = None) -> AbstractContextManager[RayHere]:
    from slime_cluster.ray.starter import here

    return here(topology, run)
