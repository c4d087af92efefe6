"""Looks at one host before a run: whether it has what the run needs. Nothing is loaded, and no device is touched.

Every check yields a `Fault` for each thing that is wrong, so that all of a host's are told at once.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import psutil

from slime import plugins
from slime.config.gpus import Gpu, table
from slime.config.paths import resolve
from slime.errors import SlimeError, did_you_mean
from slime.files import free_bytes, human_bytes
from slime_cluster.ray.gpus import MIB, read_gpus
from slime_cluster.ray.gpus import Gpu as SeenGpu

IMPORT_S = 120.0
INFINIBAND = Path("/sys/class/infiniband")


@dataclass(frozen=True)
class Fault:
    """What is wrong with a host, and what to do: the parts of a SlimeError."""

    what: str
    todo: str


@dataclass(frozen=True)
class Devices:
    """The GPUs that a run takes of a host.

    Attributes:
        count: how many.
        total: bytes that the plan gives each; None: it was not told.
        peak: bytes that the fullest one needs, 0 if that is not known.
        gpu: the row that the plan computes with, and its name; none: it was not told.
        are_first: they are the first that can be seen, as in a Ray of the run's own; otherwise any.
    """

    count: int
    total: float | None = None
    peak: float = 0.0
    gpu: tuple[str, Gpu] | None = None
    are_first: bool = True


@dataclass(frozen=True)
class Wanted:
    """What every host must have, as the driver's host has it and as the plan computes it.

    Attributes:
        software: of the driver, see `Software`.
        nonces: files that every host must see, with their texts, by the key that names the folder.
        folders: that the run reads, by the key of the config: as that names it, and size in bytes by name of its files.
        modules: Python modules that the run needs beside slime's own requirements.
        ib_devices: InfiniBand or RoCE devices by name.
        memory: bytes of host memory at the peak, 0 if that is not known.
        space: free bytes by folder.
    """

    software: Software
    nonces: Mapping[str, tuple[Path, str]]
    folders: Mapping[str, tuple[str, Mapping[str, int]]]
    modules: Sequence[str] = ()
    ib_devices: Sequence[str] = ()
    devices: Devices | None = None
    memory: float = 0.0
    space: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Software:
    """What must be alike on all hosts.

    Attributes:
        plugins: `Plugins.fingerprint`.
        versions: of Python and of every package that slime requires and that is there.
        sources: digest of the Python files of slime and of each plugin, by package.
    """

    plugins: plugins.Fingerprint
    versions: Mapping[str, str]
    sources: Mapping[str, str]


@dataclass(frozen=True)
class HostFacts:
    """What was found on a host.

    Attributes:
        host: its own name for itself.
        clock: seconds since the epoch.
        facts: for the reader, by what they are of.
        notes: what stops no run, but is not as planned.
    """

    host: str
    clock: float
    faults: Sequence[Fault]
    facts: Mapping[str, str]
    notes: Sequence[str] = ()


def check_host(wanted: Wanted) -> HostFacts:
    memory = available_memory()
    gpus = read_gpus() if wanted.devices else []
    faults = [
        *_software(wanted.software),
        *(fault for key, (path, text) in wanted.nonces.items() for fault in _nonce(key, path, text)),
        *(fault for key, of in wanted.folders.items() for fault in _folder(key, *of)),
        *(fault for name in wanted.modules for fault in _module(name)),
        *_infiniband(wanted.ib_devices),
        *(_devices(wanted.devices, gpus) if wanted.devices else ()),
        *_memory(wanted.memory, memory),
        *(fault for folder, needed in wanted.space.items() for fault in _space(folder, needed)),
    ]
    facts = {"memory": human_bytes(memory)}
    if gpus:
        facts["GPUs"] = ", ".join(f"{gpu.name} {human_bytes(gpu.free)}" for gpu in gpus)
    notes = list(_other_kind(wanted.devices, gpus)) if wanted.devices else []
    free = {folder: human_bytes(free_bytes(Path(folder))) for folder in wanted.space}
    return HostFacts(socket.gethostname(), time.time(), faults, facts | free, notes)


def read_software() -> Software:
    installed = plugins.load()
    entries = metadata.entry_points(group=plugins.ENTRY_POINT_GROUP)
    packages = {"slime", *(entry.value.partition(".")[0].partition(":")[0] for entry in entries)}
    return Software(installed.fingerprint(), _versions(), {name: _digest(name) for name in sorted(packages)})


def _versions() -> dict[str, str]:
    required = metadata.requires(plugins.BUILTIN) or ()
    names = sorted({re.split(r"[^\w.-]", requirement, maxsplit=1)[0] for requirement in required})
    found = {"Python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def _digest(package: str) -> str:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return "missing"
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    return digest_of([file for folder in folders for file in sorted(folder.rglob("*.py"))] or [Path(str(spec.origin))])


def digest_of(files: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def _software(driver: Software) -> Iterator[Fault]:
    here, mine = socket.gethostname(), read_software()
    yield from plugin_faults(driver.plugins, mine.plugins, here)
    differ = [
        f"{name} is {mine.versions.get(name, 'missing')} and {driver.versions.get(name, 'missing')} at the driver"
        for name in sorted(driver.versions.keys() | mine.versions.keys())
        if mine.versions.get(name) != driver.versions.get(name)
    ]
    if differ:
        yield Fault(", ".join(differ), "Install the same versions on every host.")
    for package, digest in driver.sources.items():
        if mine.sources.get(package, digest) != digest:  # a plugin that is missing was told above
            yield Fault(f"the code of {package} is not the driver's", "Install the same files on every host.")


def plugin_faults(driver: plugins.Fingerprint, mine: plugins.Fingerprint, host: str) -> Iterator[Fault]:
    """The first plugin that this host has otherwise than the driver."""
    name = next((name for name in sorted(driver.keys() | mine.keys()) if driver.get(name) != mine.get(name)), None)
    if name is None:
        return
    own, wanted = mine.get(name), driver.get(name)
    if wanted is None:
        todo = f"Run 'pip uninstall {mine[name]['distribution']}' on {host}, or install it at the driver."
        yield Fault(f"plugin {mine[name]['distribution']} is installed there and not at the driver", todo)
        return
    has = f"{own['distribution']} {own['version']}" if own else "none"
    if own and own["version"] == wanted["version"]:
        has += f" contributing {own['contributes']} instead of {wanted['contributes']}"
    what = f"plugin '{name}' is {wanted['distribution']} {wanted['version']} at the driver, but {has} there"
    yield Fault(what, f"Run 'pip install {wanted['distribution']}=={wanted['version']}' on {host}.")


def _nonce(key: str, path: Path, text: str) -> Iterator[Fault]:
    try:
        found = path.read_text()
    except OSError:
        found = None
    if found != text:
        what = f"it finds {'no' if found is None else 'another'} directory at {path.parent}"
        yield Fault(what, f"Put {key} on a file system that every host of the run shares.")


def _folder(key: str, folder: str, files: Mapping[str, int]) -> Iterator[Fault]:
    try:
        found = sizes(resolve(folder))
    except SlimeError as problem:
        yield Fault(problem.what, f"Put {key} where every host of the run sees it.")
        return
    if differ := [name for name, size in files.items() if found.get(name) != size]:
        first = differ[0]
        has = f"{found[first]} bytes" if first in found else "none"
        what = (
            f"{len(differ)} file(s) in '{folder}' are not the driver's: {first} has {has}, there {files[first]} bytes"
        )
        yield Fault(what, f"Copy it again, or name a folder in {key} that every host sees.")


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of each file in a folder, by name."""
    return {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}


def _module(name: str) -> Iterator[Fault]:
    """In a process of its own: such modules load CUDA, and may take the process with them."""
    done = subprocess.run([sys.executable, "-c", f"import {name}"], capture_output=True, text=True, timeout=IMPORT_S)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        yield Fault(f"'import {name}' fails: {words[-1].rstrip('.')}", "docs/install.md says how to install it.")


def _infiniband(names: Sequence[str]) -> Iterator[Fault]:
    there = sorted(path.name for path in INFINIBAND.iterdir()) if INFINIBAND.is_dir() else []
    for name in names:
        states = [file.read_text().strip() for file in (INFINIBAND / name).glob("ports/*/state")]
        if name not in there:
            todo = f"Correct cluster.ib_devices. {did_you_mean(name, there)}"
            yield Fault(f"there is no InfiniBand device {name}", todo)
        elif not any("ACTIVE" in state for state in states):
            todo = "See 'ibstat', or leave it out of cluster.ib_devices."
            yield Fault(f"no port of {name} is active ({', '.join(states)})", todo)


def _other_kind(wanted: Devices, gpus: Sequence[SeenGpu]) -> Iterator[str]:
    """Says which GPU is another than the one that the plan computes with."""
    if wanted.gpu is None:
        return
    name, planned = wanted.gpu
    taken = gpus[: wanted.count] if wanted.are_first else gpus
    other = next((gpu for gpu in taken if not _seen_as(planned.device_name, gpu.kind)), None)
    if other:
        known = next((row for row, gpu in table().items() if _seen_as(gpu["device_name"], other.kind)), None)
        todo = f"Set cluster.gpu={known}" if known else "Describe it by cluster.gpu_row (docs/gpus.md)"
        yield f"GPU {other.name} is {other.kind}, the plan counts on {name}. {todo} and plan again."


def _seen_as(device_name: str, driver_name: str) -> bool:
    """Whether a row is that of a device that its driver calls `NVIDIA A100-SXM4-40GB`, for instance."""
    return set(device_name.split()) <= set(re.findall(r"[^\W_]+", driver_name))


def _devices(wanted: Devices, gpus: Sequence[SeenGpu]) -> Iterator[Fault]:
    if len(gpus) < wanted.count:
        seen = f"{len(gpus)} GPUs are to be seen, the run takes {wanted.count}"
        yield Fault(seen, "See 'nvidia-smi' and CUDA_VISIBLE_DEVICES there, or lower cluster.devices_per_node.")
        return
    taken = gpus[: wanted.count] if wanted.are_first else gpus
    small = [gpu for gpu in taken if wanted.total and gpu.total < wanted.total]
    if len(taken) - len(small) < wanted.count:
        assert wanted.total
        told = f"GPU {small[0].name} has {human_bytes(small[0].total)}, the plan counts on {human_bytes(wanted.total)}"
        yield Fault(told, f"Set cluster.device_memory_mb={small[0].total // MIB:.0f} and plan again.")
    full = [gpu for gpu in taken if gpu not in small and gpu.free < wanted.peak]
    if len(taken) - len(small) - len(full) < wanted.count and full:
        told = ", ".join(f"GPU {gpu.name} has {human_bytes(gpu.free)} free" for gpu in full)
        yield Fault(f"{told}, the run needs {human_bytes(wanted.peak)}", "End what else uses it: see 'nvidia-smi'.")


def available_memory(group: Path = Path("/sys/fs/cgroup")) -> float:
    """Bytes that processes can still get, of the host and of the control group that this one is in."""
    left = [float(psutil.virtual_memory().available)]
    for limit, used, cached in (
        ("memory.max", "memory.current", "inactive_file"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes", "total_inactive_file"),
    ):
        with contextlib.suppress(OSError, ValueError):  # another version of them, or no limit ("max")
            statistics = (group / used).with_name("memory.stat").read_text().split()
            given_back = dict(zip(statistics[::2], map(int, statistics[1::2]), strict=True))[cached]
            left.append(int((group / limit).read_text()) - int((group / used).read_text()) + float(given_back))
    return min(left)


def _memory(needed: float, available: float) -> Iterator[Fault]:
    if available < needed:
        what = f"{human_bytes(available)} of host memory are available, the plan needs {human_bytes(needed)}"
        yield Fault(what, "End what else uses it, or use more hosts.")


def _space(folder: str, needed: float) -> Iterator[Fault]:
    if (free := free_bytes(Path(folder))) < needed:
        what = f"{human_bytes(free)} are free in {folder}, the run needs {human_bytes(needed)}"
        yield Fault(what, SPACE_TODO.get(folder, "Free some space there."))


SPACE_TODO = {"/dev/shm": "Enlarge it ('mount -o remount,size=... /dev/shm'); of a container by --ipc=host."}
