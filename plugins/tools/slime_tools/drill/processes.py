"""The processes of a run on this host, by what they are for; and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from slime_cluster.ray.reaper import wait_until_gone

DRIVER, GUARD, WORKER = "driver", "guard", "worker"
ROLES: Mapping[str, str] = {
    "slime_cluster.ray.reaper": "reaper",
    "gcs_server": "gcs_server",
    "raylet/raylet": "raylet",
    "ray::DashboardAgent": "dashboard agent",
    "ray::RuntimeEnvAgent": "runtime env agent",
    "ray::TrainerActor": "trainer",
    "ray::EngineActor": "engine's keeper",
    "slime_sglang.engine.launcher": "engine's server",
    "sglang::scheduler": "engine's scheduler",
    "sglang::detokenizer": "engine's detokenizer",
    "guarded_workers.worker": GUARD,
    "endpoint/keeper.py": "agent's keeper",
    "slime_cluster.ssh.host": "session of a host",
}
"""Words of a command, and what its process is. A guard's child is the worker that it guards: of a reward, or of a
program."""
SCRATCH = "SLIME_ENGINE_SCRATCH"
SHARED_MEMORY = "/dev/shm/"


def members(driver: psutil.Process) -> Iterator[tuple[str, psutil.Process]]:
    """The driver's role and process, then those of all that it has started, as far as they have a role."""
    yield DRIVER, driver
    for process in driver.children(recursive=True):
        with suppress(psutil.Error):
            if role := role_of(process):
                yield role, process


def role_of(process: psutil.Process) -> str | None:
    """Raises psutil.NoSuchProcess if it has ended."""
    role, parent = _by_words(process), process.parent()
    return WORKER if role == GUARD and parent and _by_words(parent) == GUARD else role


def _by_words(process: psutil.Process) -> str | None:
    command = " ".join([process.name(), *process.cmdline()])
    return next((role for words, role in ROLES.items() if words in command), None)


class Traces:
    """What a run has started, and what that keeps outside of the run's directory, as far as it was looked at."""

    def __init__(self) -> None:
        self._family: set[psutil.Process] = set()
        self._kept: set[Path] = set()

    def look(self, driver: psutil.Process) -> None:
        """Remember what is there now."""
        with suppress(psutil.NoSuchProcess):
            self._family |= {driver, *driver.children(recursive=True)}
        for process in [*self._family]:
            with suppress(psutil.Error, OSError):
                self._kept |= set(_kept_by(process))

    def strays(self, within_s: float) -> list[str]:
        """Commands of the processes that are still there so many seconds later."""
        return [told for process in wait_until_gone(self._family, within_s) if (told := command_of(process))]

    def litter(self) -> list[Path]:
        """The files and folders that are still there."""
        return sorted(path for path in self._kept if path.exists())


def _kept_by(process: psutil.Process) -> Iterator[Path]:
    if scratch := process.environ().get(SCRATCH):
        yield Path(scratch)
    for entry in process.memory_maps():
        if entry.path.startswith(SHARED_MEMORY):
            yield Path(entry.path.removesuffix(" (deleted)"))


def command_of(process: psutil.Process) -> str:
    """Its words; empty if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""
