"""Hosts that are lost while the run goes on: their processes start again on a spare host, or on one that comes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from slime.cluster.fewer_hosts import FewerHosts
from slime.cluster.host_places import HostPlaces
from slime.cluster.placement import HOST_LABEL, this_node
from slime.cluster.ray_starter import RayHosts
from slime.cluster.watch import WATCH_S, Member, Spare
from slime.config.schema import ClusterConfig
from slime.errors import Death

WAITING = "waiting for a host"
AGAIN_S = 5.0
"""Between two attempts to bring a lost host up."""
log = logging.getLogger(__name__)


def have_hosts(members: Sequence[Member], replacing: HostReturn | None) -> bool:
    """True if Ray still has the host of each, or another may take its place."""
    import ray

    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    gone = {member.node for member in members} - alive
    return all(replacing and replacing.may_replace(node) for node in gone)


class HostReturn:
    """Replaces lost hosts under `cluster.spares` and `cluster.wait_for_host_s`, or has the run go on with `fewer`.
    Processes that come back are made where `places` has their host by then."""

    def __init__(self, cluster: ClusterConfig, places: HostPlaces, hosts: RayHosts, fewer: FewerHosts) -> None:
        self._limit_s, self._places, self._hosts, self._fewer = cluster.wait_for_host_s, places, hosts, fewer
        self._last: Death | None = None
        self._waits, self._tried_at = False, 0.0

    def may_replace(self, node: str) -> bool:
        """Whether the run goes on without the host of that id of Ray's: one takes its place now, or may come."""
        known = node in self._places.lost
        replaced = known or self._limit_s or self._places.spares
        return node != this_node() and bool(replaced or self._fewer.suffice({*self._places.lost, node}))

    def lose(self, node: str, death: Death, members: Sequence[Member], spare: Spare) -> Death | None:
        """Go on without a host.

        Args:
            death: what is known of its loss.
            members: the processes of the run, trainer ranks first; those on this host end now.

        Returns:
            The death of a process there that `spare` does not start again, or `death`; None: all of them start again.
        """
        import ray

        gone = {str(number) for number in self._hosts.lost(WAITING)}
        for other in ray.nodes():  # spare ones may be lost, too
            if other["NodeID"] != node and other["Labels"].get(HOST_LABEL) in gone:
                self._places.lost.add(other["NodeID"])
        if not self.may_replace(node):
            return death
        self._last = death
        self._places.lost.add(node)
        of_host = [member for member in members if member.node == node]
        for member in of_host:
            ray.kill(member.actor)  # Ray may take a minute to see that it is gone
            member.has_died = True
        self._waits = bool(self._places.lacking())  # spare ones come in before processes are made
        then = WAITING if self._waits else f"a spare host takes its place, {len(self._places.spares)} more are there"
        log.warning("%s: %s; %s", death.where, death.what, then)
        what = f"{death.where}: {death.what}"
        ends = [(member, Death(what, where=str(member), todo=death.todo)) for member in of_host]
        return next(iter([end for member, end in ends if not spare(member, end)]), None)

    def advance(self) -> None:
        """Try to bring lost hosts up as long as some place is empty. Waits for nothing."""
        if self._waits and time.monotonic() >= self._tried_at + AGAIN_S:
            self._tried_at = time.monotonic()
            if self._places.lacking():
                self._hosts.bring_back()
            else:
                self._waits = False

    def wait(self, look: Callable[[str], None], tell: Callable[[], None]) -> list[Member]:
        """Until each host that was lost has another in its place. Where none comes, returns the trainer ranks that the
        run has on the hosts that are left.

        Args:
            look: calls `advance`, and raises what ends the run meanwhile.
            tell: told every second that it lasts.

        Raises:
            Death: of the host that was lost last; none came within `cluster.wait_for_host_s`, and too few are left.
        """
        deadline = time.monotonic() + self._limit_s
        while self._places.lacking():
            assert self._last, "places are empty because of a loss"
            if time.monotonic() >= deadline:
                waited = f"no host came in its place within {self._limit_s:g} s (cluster.wait_for_host_s)"
                if self._fewer.suffice(self._places.lost):
                    self._places.give_up()
                    ranks, change = self._fewer.without(self._places.lost)
                    log.warning("%s: %s; %s", self._last.where, waited, change)
                    return ranks
                raise Death(f"{self._last.what}; {waited}", where=self._last.where, todo=self._last.todo)
            look(WAITING)
            tell()
            time.sleep(WATCH_S)
        return []
