"""Whether the hosts of a run reach each other, at ports that are free: as its trainers and engines will."""

from __future__ import annotations

import socket
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from slime.cluster.placement import on_node
from slime_tools.preflight.host_checks import Fault

CONNECT_S = 10.0
"""How long a host may take to accept; a filtered port never answers."""
MOST_AT_ONCE = 64
TODO = "Let all TCP ports through between the hosts of the run (docs/install.md)."

Address = tuple[str, int]
"""Host and port."""


class Listener:
    """Listens at a free port of one host, and tries those of the others. The kernel accepts; nothing is said.

    Args:
        address: of this host; empty: at which Ray's other hosts know it.
    """

    def __init__(self, address: str = "") -> None:
        if not address:
            import ray

            address = ray.util.get_node_ip_address()
        self._socket = socket.create_server((address, 0), backlog=socket.SOMAXCONN)

    def address(self) -> Address:
        address, port = self._socket.getsockname()
        return address, port

    def missed(self, others: Mapping[str, Address]) -> list[Fault]:
        """Those of the others, by name, that cannot be reached from here."""
        with ThreadPoolExecutor(MOST_AT_ONCE) as pool:
            tried = zip(others.items(), pool.map(_why_not, others.values()), strict=True)
            return [
                Fault(f"it does not reach {name} at {address}:{port} ({why})", TODO)
                for (name, (address, port)), why in tried
                if why
            ]


def _why_not(address: Address) -> str:
    """What keeps a connection from being made; empty if nothing does."""
    try:
        socket.create_connection(address, CONNECT_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def unreached(nodes: Collection[str], names: Mapping[str, str], limit_s: float) -> dict[str, list[Fault]]:
    """Of each host that does not reach all others, by name, whom it misses.

    Args:
        nodes: Ray's ids of the hosts, of two at least.
        names: of the hosts, by id.
        limit_s: for all of them to start listening; those that do not are left out, and somebody else's to name.
    """
    import ray

    listening = ray.remote(Listener)
    listeners: dict[str, Any] = {node: listening.options(**on_node(node)).remote() for node in sorted(nodes)}
    try:
        addresses = _answers({node: listener.address.remote() for node, listener in listeners.items()}, limit_s)
        tries = {
            node: listeners[node].missed.remote(
                {names[other]: addresses[other] for other in addresses if other != node}
            )
            for node in addresses
        }
        return {names[node]: faults for node, faults in _answers(tries, limit_s + CONNECT_S).items() if faults}
    finally:
        for listener in listeners.values():
            ray.kill(listener)


def _answers(asked: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
    """Answers that come in time."""
    import ray

    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=limit_s)
    found = {}
    for name, answer in asked.items():
        if answer in ready:
            with suppress(ray.exceptions.RayError):  # a host that is lost is named by what looks at it
                found[name] = ray.get(answer)
    return found
