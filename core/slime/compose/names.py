"""What a run, a model, a cluster and a variable of the environment may be called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from slime.config.schema import ClusterConfig, EngineGroupConfig
from slime.errors import SlimeError

NAME = re.compile(r"(?!\.+$)(?!-)[^\s/\\]{1,100}")
_ADDRESS = re.compile(r"auto|[^\s:/]+:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}")
_VARIABLE = re.compile(r"[^=\s]+")


def as_name(text: str) -> str:
    """A name like the text, for a model that is known by its folder alone: others than NAME's characters become `-`."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-.")[:100] or "model"


def name_problems(names: Mapping[str, str]) -> Iterator[SlimeError]:
    """Names, by their keys, that are paths, or that a folder cannot have or should not."""
    for key, name in names.items():
        if not (NAME.fullmatch(name) and name.isprintable()):
            shown = name if len(name) <= 40 else f"{name[:40]}..."
            todo = "Use letters, digits, '.', '_' and '-', at most 100 of them. run.dir takes a path."
            yield SlimeError(f"'{shown}' is not a name", where=key, todo=todo)


def address_problems(cluster: ClusterConfig) -> Iterator[SlimeError]:
    """An address of Ray that can be none."""
    address = cluster.ray_address
    if address is not None and not _ADDRESS.fullmatch(address):
        todo = "Write <host>:<port> as 'ray start --head' prints it, or auto for the cluster that this host is in."
        yield SlimeError(f"'{address}' is not an address", where="cluster.ray_address", todo=todo)


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
