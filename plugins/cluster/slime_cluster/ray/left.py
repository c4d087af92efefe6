"""What a driver that was killed has left: Ray with the actors of its run, for the same command to take over."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import socket
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from slime.plugins import ENTRY_POINT_GROUP
from slime.run_config import changes, flat, read_config
from slime.run_dir import CONFIG
from slime_cluster.ray.node import PROCESSES
from slime_cluster.ray.reaper import END, Reaper, Stay, call, end_unguarded, marked

RECORD = "logs/ray.json"
"""In a run directory; there while a driver of the run may leave something."""
OWN = (
    "slime",
    "batch_invariant",
    "megatron_core_portable",
    "sglang_torch_cpu",
    "stack_dumps",
    "vocabulary_logprobs",
    "weight_buckets",
)
"""What actors and engines import beside plugins."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Record:
    """How another process of this host finds a run's Ray.

    Attributes:
        mark: of the run; Ray's namespace is called so, too.
        pids: of Ray's processes, by name.
        ray_logs: folder of their logs.
        door: see `Stay`.
        software: `software` as the run's processes have imported it.
    """

    mark: str
    address: str
    pids: dict[str, int]
    ray_logs: str
    door: str
    software: str

    @classmethod
    def of(cls, mark: str, node: Any) -> Record:
        """Of Ray's own object for the processes that this one has started."""
        pids = {name: node.all_processes[name][0].process.pid for name in PROCESSES}
        logs = Path(node.get_logs_dir_path())
        return cls(mark, node.gcs_address, pids, str(logs), str(logs.parents[2] / "driver"), software())

    def write(self, run: Path) -> Path:
        path = run / RECORD
        path.write_text(json.dumps(asdict(self)))
        return path

    def stay(self, run: Path, seconds: float) -> Stay:
        return Stay(seconds, self.door, [*self.pids.values()], str(run / RECORD))


@contextlib.contextmanager
def taken_over(run: Path, config: Mapping[str, Any]) -> Iterator[tuple[Record, Reaper] | None]:
    """What was left of the run in this directory, which ends with the block or this process; None: nothing is there.
    What runs with another config (section -> key -> value) or other software is ended before."""
    try:
        record = Record(**json.loads((run / RECORD).read_text()))
    except (OSError, ValueError, TypeError):  # there is none, or it was cut off as it was written
        record = None
    called = record and call(record.door)
    if not record or not called:
        if record:
            end_unguarded(record.mark)
        yield None
        return
    with called:
        if why := _differs(record, run, config):
            log.warning("what a driver of this run has left is ended, and all starts again: %s", why)
            _end(called)
            yield None
            return
        try:
            with marked(record.mark):
                yield record, Reaper(called.makefile("wb"))
        finally:
            _end(called)


def _end(called: socket.socket) -> None:
    """Have the reaper end all, and wait until it has."""
    with contextlib.suppress(OSError):  # it has gone already
        called.sendall(END)
        called.recv(1)


def _differs(record: Record, run: Path, config: Mapping[str, Any]) -> str:
    if record.software != software():
        return "files of slime or of its plugins are others by now"
    return "; ".join(changes(flat(read_config(run / CONFIG)), flat(config)).values())


def software() -> str:
    """A digest of the files of slime and of all plugins, by name, size and time."""
    tops = {entry.value.partition(".")[0] for entry in entry_points(group=ENTRY_POINT_GROUP)}
    files = sorted(file for top in tops.union(OWN) for place in _places(top) for file in place.rglob("*.py"))
    return hashlib.sha256(repr([(str(file), *_facts(file)) for file in files]).encode()).hexdigest()


def _places(top: str) -> list[Path]:
    spec: Any = find_spec(top)
    return [Path(place) for place in spec.submodule_search_locations or ()] if spec else []


def _facts(file: Path) -> tuple[int, int]:
    facts = file.stat()
    return facts.st_size, facts.st_mtime_ns
