"""Rules of runs that generate for steps to come (`rollout.max_staleness`)."""

from __future__ import annotations

from collections.abc import Iterator

from slime.config.choices import Publish
from slime.errors import SlimeError
from slime.topology.placement import SAVER
from slime.topology.topology import Topology


def staleness_problems(topology: Topology) -> Iterator[SlimeError]:
    """Whether engines can generate while the trainers work, and take new weights with requests inside."""
    rollout = topology.config.rollout
    if not rollout.max_staleness:
        return
    if topology.takes_turns:
        bound = f"rollout.max_staleness={rollout.max_staleness}"
        what = f"lets trainers and engines use the devices in turns, but with {bound} both work at once"
        todo = f"Set cluster.placement=disaggregated, or rollout.sglang.{SAVER}=false if both fit together."
        yield SlimeError(what, where="cluster.placement", todo=todo)
    if rollout.publish is Publish.abort:
        return
    where, todo = "rollout.publish", "Set rollout.publish=abort."
    is_set = f"is {rollout.publish.name}, but"
    if topology.works_in_pairs:
        yield SlimeError(f"{is_set} prefill and decode engines cannot pause requests", where=where, todo=todo)
        return
    for group in topology.groups:
        sizes = f"pp_size={group.sglang.get('pp_size')}"
        if (group.sglang.get("pp_size") or 1) > 1:
            yield SlimeError(f"{is_set} engines of {sizes} cannot pause requests", where=where, todo=todo)
        elif rollout.publish is Publish.keep and group.sglang.get("speculative_algorithm"):
            todo = "Set rollout.publish=retract."
            yield SlimeError(f"{is_set} engines that draft tokens cannot keep their keys", where=where, todo=todo)
