"""The GPUs of one host, by nvidia-smi: no device is touched."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from slime.config.schema import ClusterConfig
from slime.errors import SlimeError

SMI_S = 60.0
MIB = 2**20
QUERY = ("index", "uuid", "memory.total", "memory.used", "name")


@dataclass(frozen=True)
class Gpu:
    """One device as nvidia-smi shows it: `name` is its number, `kind` the driver's name of it; sizes are bytes."""

    name: str
    uuid: str
    total: float
    used: float
    kind: str = ""

    @property
    def free(self) -> float:
        return self.total - self.used


def read_gpus() -> list[Gpu]:
    """Those that a run may use (CUDA_VISIBLE_DEVICES), in their order; none where there is no driver."""
    command = ["nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return visible(parse_gpus(done.stdout), os.environ.get("CUDA_VISIBLE_DEVICES"))


def require_gpus(cluster: ClusterConfig) -> None:
    """Raise SlimeError where a run on GPUs is to start Ray here, and this host has none."""
    if cluster.on_gpus and cluster.ray_address is None and not read_gpus():
        what = f"no GPU is to be seen on this host ({socket.gethostname()})"
        todo = "Start it on a host with GPUs (see 'nvidia-smi' and CUDA_VISIBLE_DEVICES), or use +cluster=local."
        raise SlimeError(what, where="cluster.device", todo=todo)


def parse_gpus(table: str) -> list[Gpu]:
    """What nvidia-smi answers to `QUERY`."""
    rows = [[cell.strip() for cell in row] for row in csv.reader(table.splitlines())]
    return [
        Gpu(index, uuid, int(total) * MIB, int(used) * MIB, kind)
        for index, uuid, total, used, kind in (row for row in rows if len(row) == len(QUERY))
    ]


def visible(gpus: Sequence[Gpu], names: str | None) -> list[Gpu]:
    """Those that CUDA_VISIBLE_DEVICES names, by number or by the beginning of their UUID; all if it names none."""
    if not names:
        return list(gpus)
    found = []
    for name in names.split(","):
        found += [gpu for gpu in gpus if gpu.name == name.strip() or gpu.uuid.startswith(name.strip() or "-")]
    return found
