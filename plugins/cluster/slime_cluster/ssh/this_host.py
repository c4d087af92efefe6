"""This host among those of a hostfile."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

import psutil

from slime.config.schema import ClusterConfig
from slime.errors import SlimeError
from slime.topology.launcher import ThisHost

_NOWHERE = 9
"""A port to name where nothing is sent."""


def find_this_host(hosts: Sequence[str], cluster: ClusterConfig) -> ThisHost:
    """This host in the hostfile; raises SlimeError if it is not there, or not by an address at which others reach
    it."""
    where = str(cluster.hostfile)
    mine = {address.address for addresses in psutil.net_if_addrs().values() for address in addresses}
    for number, host in enumerate(map(_bare, hosts)):
        found = _addresses(host)
        if host not in (socket.gethostname(), socket.getfqdn()) and not (found & mine) and not any(map(_loops, found)):
            continue
        if len(hosts) == 1:
            return ThisHost(number, "")
        # Debian gives a host's own name the address 127.0.1.1.
        reachable = sorted(address for address in found & mine if not _loops(address))
        others = [_bare(other) for other in hosts if _bare(other) != host]
        if address := next(iter(reachable), None) or _seen_from(others):
            return ThisHost(number, address)
        what = f"'{host}' is this host, but not the address at which the others reach it"
        raise SlimeError(what, where=where, todo=f"Write that address in place of '{host}'.")
    todo = f"Start slime on one of them, or write '{socket.gethostname()}' into the file."
    raise SlimeError(f"none of {', '.join(hosts)} is this host", where=where, todo=todo)


def _bare(host: str) -> str:
    """Without the user and port that ssh takes: `user@host`, `ssh://user@host:port`."""
    return urlsplit(host).hostname or host if host.startswith("ssh://") else host.rpartition("@")[2]


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host, None)}
    except OSError:  # a name of ~/.ssh/config alone
        return set()


def _loops(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _seen_from(others: Sequence[str]) -> str | None:
    """The address from which this host would write to another one; nothing is sent."""
    for address in (address for other in others for address in _addresses(other)):
        with contextlib.suppress(OSError), socket.socket(_family(address), socket.SOCK_DGRAM) as route:
            route.connect((address, _NOWHERE))
            return str(route.getsockname()[0])
    return None


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET
