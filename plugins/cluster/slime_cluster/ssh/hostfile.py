"""`cluster.hostfile`: the hosts of a run, one address a line, `#` begins a comment.

Behind an address may stand `slots=8`, as in other launchers' files; it must be `cluster.devices_per_node`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from slime.config.paths import resolve
from slime.config.schema import ClusterConfig
from slime.errors import SlimeError, did_you_mean

SLOTS = re.compile(r"slots?=(\d+)")
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def read_hostfile(path: str, devices_per_node: int | None = None) -> list[str]:
    """The addresses in the order of their lines.

    Raises:
        SlimeError: there is no such file, it names no host or one twice, or a line is no address, or has other slots
            than `devices_per_node`.
    """
    file = resolve(path)
    if not file.is_file():
        raise SlimeError("is a folder", where=str(file), todo="Name a file with an address a line.")
    lines: dict[str, int] = {}
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if not (address := line.partition("#")[0].strip()):
            continue
        where = f"{file}, line {number}"
        address, *others = address.split()
        if (slots := SLOTS.fullmatch(" ".join(others))) and int(slots[1]) != (devices_per_node or int(slots[1])):
            what = f"'{slots[0]}', but cluster.devices_per_node is {devices_per_node}"
            todo = "Make them equal: a run uses the same number of devices on every host."
            raise SlimeError(what, where=where, todo=todo)
        if (others and not slots) or address.startswith("-"):  # the latter would be an option to ssh
            what, alone = f"'{' '.join([address, *others])}' is not an address", address.lstrip("-")
            raise SlimeError(what, where=where, todo=f"Write '{alone}' alone, or '{alone} slots=8'.")
        if address in lines:
            what = f"'{address}' is on line {lines[address]} already"
            todo = "Name each host once, and its devices by cluster.devices_per_node."
            raise SlimeError(what, where=where, todo=todo)
        lines[address] = number
    if not lines:
        raise SlimeError("names no host", where=str(file), todo="Write an address a line, this host's among them.")
    if local := [address for address in lines if address in LOOPBACK and len(lines) > 1]:
        what, where = f"the others cannot reach this host as '{local[0]}'", f"{file}, line {lines[local[0]]}"
        raise SlimeError(what, where=where, todo=f"Write '{os.uname().nodename}'.")
    return list(lines)


def hostfile_problems(cluster: ClusterConfig) -> Iterator[SlimeError]:
    """Faults of the file, and of what it says beside other keys."""
    where = "cluster.hostfile"
    if cluster.hostfile is None:
        todo = "Set cluster.hostfile=<a file with an address a line>."
        yield SlimeError("is ssh, which needs a hostfile", where="cluster.launcher", todo=todo)
        return
    try:
        hosts = read_hostfile(cluster.hostfile, cluster.devices_per_node)
    except SlimeError as problem:
        yield problem.under(where)
        return
    if unknown := [name for name in cluster.exclude if name not in hosts]:
        what = f"'{unknown[0]}' is no host of {cluster.hostfile}"
        yield SlimeError(what, where="cluster.exclude", todo=did_you_mean(unknown[0], hosts))
        return
    have, wanted = len(used(hosts, cluster)), cluster.num_hosts
    if have != wanted:
        beside = f" besides {len(hosts) - have} excluded" if have < len(hosts) else ""
        spares = f" and cluster.spares {cluster.spares}" if cluster.spares else ""
        what = f"{cluster.hostfile} names {have} host(s){beside}, cluster.num_nodes is {cluster.num_nodes}{spares}"
        spare = f", or set cluster.spares={have - cluster.num_nodes}" if have >= cluster.num_nodes else ""
        todo = f"Name {wanted} in the file, or choose a cluster of {have}{spare}."
        yield SlimeError(what, where=where, todo=todo)


def used(hosts: Sequence[str], cluster: ClusterConfig) -> list[str]:
    """Those that `cluster.exclude` leaves."""
    return [host for host in hosts if host not in cluster.exclude]
