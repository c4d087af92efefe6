"""What runs, models, clusters, sets of prompts and variables may be called, and how the hosts of a run are named."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from slime.config.schema import ClusterConfig, DataConfig, EngineGroupConfig, EvalConfig
from slime.errors import SlimeError, did_you_mean
from slime.extras import how_to_get
from slime.plugins import Plugins
from slime.topology.launcher import launcher_name

NAME = re.compile(r"(?!\.+$)(?!-)[^\s/\\]{1,100}")
_ADDRESS = re.compile(r"auto|[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
_VARIABLE = re.compile(r"[^=\s]+")
_SET = re.compile(r"[a-z0-9][a-z0-9_-]*")
"""Part of a metric's name, of a key and of prompts' ids."""
_TAKEN = ("main", "reward_part", "notes")
"""Parts of metrics' names that mean something else."""


def name_problems(names: Mapping[str, str]) -> Iterator[SlimeError]:
    """Names, by their keys, that are paths, or that a folder cannot have or should not."""
    for key, name in names.items():
        if not (NAME.fullmatch(name) and name.isprintable()):
            shown = name if len(name) <= 40 else f"{name[:40]}..."
            todo = "Use letters, digits, '.', '_' and '-', at most 100 of them. run.dir takes a path."
            yield SlimeError(f"'{shown}' is not a name", where=key, todo=todo)


def environment_problems(cluster: ClusterConfig, engines: Mapping[str, EngineGroupConfig]) -> Iterator[SlimeError]:
    """Variables that a process cannot be given."""
    homes = {"cluster.environment": cluster.environment}
    homes |= {f"rollout.engines.{name}.environment": group.environment for name, group in engines.items()}
    for home, variables in homes.items():
        for name, value in variables.items():
            if not _VARIABLE.fullmatch(str(name)):
                yield SlimeError("is not the name of a variable", where=f"{home}.{name}", todo="Correct it.")
            elif not isinstance(value, str | int | float):
                todo = "Write a text or a number; '~' in front of the key removes one that a file sets."
                yield SlimeError(f"must be a text or a number, got {value}", where=f"{home}.{name}", todo=todo)


def set_problems(data: DataConfig, evaluation: EvalConfig) -> Iterator[SlimeError]:
    """Named sets of prompts whose names cannot be, and options of nothing."""
    for home, own in {**data.named(), **evaluation.named()}.items():
        name = home.rpartition(".")[2]
        if not _SET.fullmatch(name) or name in _TAKEN:
            todo = "Use lower-case letters, digits, - and _; not " + ", ".join(_TAKEN) + "."
            yield SlimeError(f"'{name}' cannot be the name of a set", where=home, todo=todo)
        for kind in ("reward", "program"):
            if getattr(own, f"{kind}_options") and getattr(own, kind) is None:
                what, where = f"does nothing without {home}.{kind}", f"{home}.{kind}_options"
                yield SlimeError(what, where=where, todo="Set that too, or remove this.")


def launcher_problems(cluster: ClusterConfig, plugins: Plugins) -> Iterator[SlimeError]:
    """Whether Ray, and the run's other hosts, can be brought up as the config says."""
    name, where = launcher_name(cluster), "cluster.launcher" if cluster.launcher else "cluster.hostfile"
    if name is None:
        return
    if cluster.ray_address is not None:
        todo = "Remove one: the hostfile is for a Ray that slime starts, the address for one that runs already."
        yield SlimeError("cannot be set together with cluster.ray_address", where=where, todo=todo)
    if name in plugins.launchers:
        yield from plugins.launchers.create(name).problems(cluster)
        return
    todo = how_to_get(f"launcher/{name}") or did_you_mean(name, plugins.launchers.names())
    yield SlimeError(f"no launcher named '{name}' is installed", where=where, todo=todo)


def address_problems(cluster: ClusterConfig) -> Iterator[SlimeError]:
    address = cluster.ray_address
    if address is not None and not _ADDRESS.fullmatch(address):
        todo = "Write <host>:<port> as 'ray start --head' prints it, or auto for the cluster that this host is in."
        yield SlimeError(f"'{address}' is not an address", where="cluster.ray_address", todo=todo)
