"""`cluster.hostfile`: the hosts of a run, one address a line, `#` begins a comment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from slime.config.paths import resolve
from slime.config.schema import ClusterConfig
from slime.errors import SlimeError

LOOPBACK = ("localhost", "127.0.0.1", "::1")


def read_hostfile(path: str) -> list[str]:
    """The addresses in the order of their lines.

    Raises:
        SlimeError: there is no such file, it names no host or one twice, or a line is no address.
    """
    file = resolve(path)
    if not file.is_file():
        raise SlimeError("is a folder", where=str(file), todo="Name a file with an address a line.")
    lines: dict[str, int] = {}
    for number, line in enumerate(file.read_text(errors="replace").splitlines(), start=1):
        if not (address := line.partition("#")[0].strip()):
            continue
        where = f"{file}, line {number}"
        if len(address.split()) > 1 or address.startswith("-"):  # the latter would be an option to ssh
            first = address.split()[0].lstrip("-")
            raise SlimeError(f"'{address}' is not an address", where=where, todo=f"Write '{first}' alone.")
        if address in lines:
            what = f"'{address}' is on line {lines[address]} already"
            raise SlimeError(what, where=where, todo="Name each host once: a run takes cluster.devices_per_node of it.")
        lines[address] = number
    if not lines:
        raise SlimeError("names no host", where=str(file), todo="Write an address a line, this host's among them.")
    if local := [address for address in lines if address in LOOPBACK and len(lines) > 1]:
        what, where = f"the others cannot reach this host as '{local[0]}'", f"{file}, line {lines[local[0]]}"
        raise SlimeError(what, where=where, todo=f"Write '{_name()}'.")
    return list(lines)


def _name() -> str:
    return Path("/proc/sys/kernel/hostname").read_text().strip()


def hostfile_problems(cluster: ClusterConfig) -> Iterator[SlimeError]:
    """Whether the file can be read and says what the other keys say."""
    where = "cluster.hostfile"
    if cluster.hostfile is None:
        return
    if cluster.ray_address is not None:
        todo = "Remove one of them: a Ray of its own takes the hostfile, one that is there the address."
        yield SlimeError("is set, and cluster.ray_address too", where=where, todo=todo)
    try:
        hosts = read_hostfile(cluster.hostfile)
    except SlimeError as problem:
        yield SlimeError(problem.what, where=", ".join(filter(None, (where, problem.where))), todo=problem.todo)
        return
    if len(hosts) != cluster.num_nodes:
        what = f"{cluster.hostfile} names {len(hosts)} host(s), cluster.num_nodes is {cluster.num_nodes}"
        todo = f"Set cluster.num_nodes={len(hosts)}, or name {cluster.num_nodes} in the file."
        yield SlimeError(what, where=where, todo=todo)
