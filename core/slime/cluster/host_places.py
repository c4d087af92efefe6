"""Which host of Ray's each host of the topology is. In the place of one that was lost comes a spare one, or one that
has joined since."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.util.placement_group import PlacementGroup


class HostPlaces:
    """The hosts of one run, by Ray's placement group.

    Args:
        group: has a bundle for each host that processes are on, and then one for each spare host. Ray itself gives the
            bundle of a lost host to one that joins, if it has the label that the bundle asks for.

    Attributes:
        lost: Ray's ids of hosts that are gone, whether Ray knows it yet or not.
    """

    def __init__(self, group: PlacementGroup, num_used: int) -> None:
        self._group = group
        self._bundles: list[int] = [*range(num_used)]
        self.lost: set[str] = set()
        self._given_up: set[int] = set()

    def bundle(self, host: int) -> int:
        """The bundle of the `host`-th host that processes are on."""
        return self._bundles[host]

    @property
    def spares(self) -> list[int]:
        """Bundles of hosts that are there and unused."""
        return self._unused(self._there())

    def lacking(self) -> int:
        """Number of hosts whose place is empty, once spare ones have taken the places of lost ones."""
        there = self._there()
        for host, bundle in enumerate(self._bundles):
            if bundle not in there and (spares := self._unused(there)):
                self._bundles[host] = spares[0]
        return sum(bundle not in there for host, bundle in enumerate(self._bundles) if host not in self._given_up)

    def give_up(self) -> None:
        """From now on do without the hosts whose places are empty."""
        there = self._there()
        self._given_up = {host for host, bundle in enumerate(self._bundles) if bundle not in there}

    def _unused(self, there: dict[int, str]) -> list[int]:
        return sorted(there.keys() - set(self._bundles))

    def _there(self) -> dict[int, str]:
        """Ray's id of the host of each bundle that has one."""
        from ray.util.placement_group import placement_group_table

        found = placement_group_table(self._group)["bundles_to_node_id"]
        return {bundle: node for bundle, node in found.items() if node and node not in self.lost}
