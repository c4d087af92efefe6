"""Trainer ranks on the hosts that are left, where no other takes the place of a lost one: fewer data-parallel ranks."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence

from slime.cluster.placement import Slot
from slime.cluster.watch import Member
from slime.errors import SlimeError
from slime.layout import Grid
from slime.topology.topology import Topology

Make = Callable[[Topology, int, Slot], Member]
"""Of a topology the trainer rank of that number, which is not started."""


class FewerHosts:
    """The trainers of one run, under `cluster.min_hosts`.

    Args:
        trainers: as they are now; the caller's list.
        engines: processes of engines, without whose hosts a run does not go on.
        slots: of the trainers.
    """

    def __init__(
        self,
        topology: Topology,
        trainers: Sequence[Member],
        engines: Sequence[Member],
        slots: Sequence[Slot],
        make: Make,
    ) -> None:
        self._topology, self._trainers, self._engines, self._slots, self._make = (
            topology,
            trainers,
            engines,
            slots,
            make,
        )

    def suffice(self, lost: Collection[str]) -> bool:
        """Whether the run may go on without these hosts (Ray's ids): the layout fits the ranks that are left."""
        left, least = self._left(lost), self._topology.cluster.min_hosts
        if least is None or any(engine.node in lost for engine in self._engines):
            return False
        if len({self._trainers[rank].node for rank in left}) < least:
            return False
        try:
            return bool(self._under(len(left)).grid)
        except SlimeError:  # parallel sizes do not divide their number
            return False

    def without(self, lost: Collection[str]) -> tuple[list[Member], str]:
        """The ranks of a run that goes on without these hosts, none of which is started; and what changes, in words."""
        left, before = self._left(lost), self._topology.grid
        hosts = [len({self._trainers[rank].node for rank in ranks}) for ranks in (left, range(len(self._trainers)))]
        self._topology, self._slots = self._under(len(left)), [self._slots[rank] for rank in left]
        ranks = [self._make(self._topology, rank, slot) for rank, slot in enumerate(self._slots)]
        after = self._topology.grid
        return ranks, (
            f"the run goes on with {_ranks(after)} on {hosts[0]} host{'s' * (hosts[0] > 1)} in the place of "
            f"{_ranks(before)} on {hosts[1]}: a step takes longer, and its batch is the same"
        )

    def _left(self, lost: Collection[str]) -> list[int]:
        return [rank for rank, member in enumerate(self._trainers) if member.node not in lost]

    def _under(self, num_trainers: int) -> Topology:
        cfg = self._topology.config
        cluster = dataclasses.replace(cfg.cluster, num_trainers=num_trainers)
        return dataclasses.replace(self._topology, config=dataclasses.replace(cfg, cluster=cluster))


def _ranks(grid: Grid) -> str:
    return f"{grid.world_size} trainer rank{'s' * (grid.world_size > 1)} (dp {grid.dp})"
