"""Worker processes for plugins' code (`guarded_workers`): one that cannot start is an error of the user's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from guarded_workers.pool import Pool
from guarded_workers.wire import Setup, StartError
from slime.errors import SlimeError
from slime.registry import Contribution


class WorkerPool(Pool):
    """A pool whose start raises a `SlimeError`."""

    def start(self) -> Any:
        try:
            return super().start()
        except StartError as error:
            raise SlimeError(error.what, where=error.where, todo=error.todo) from error


class _Section(Protocol):
    """`reward` or `rollout.program`: a section of the config that bounds workers."""

    options: dict[str, Any]
    memory_mb: int
    environment: list[str]

    @property
    def num_workers(self) -> int | None: ...


def pool_of(
    chosen: Contribution,
    section: _Section,
    key: str,
    servant: str,
    *,
    first: int,
    log: Path | None,
    hidden: Sequence[Path],
) -> WorkerPool:
    """A pool, not started yet, whose workers each run a plugin's contribution.

    Args:
        key: of the section, named in errors.
        servant: `module:function` that makes a `guarded_workers.worker.Servant` of the name and the options.
        first: workers at the start.
        log: file that gets what they print; None discards it.
        hidden: files that they cannot read, where the machine permits to hide them.
    """
    setup = Setup(
        kind=chosen.kind,
        name=chosen.name,
        options=section.options,
        where=f"plugin {chosen.distribution} {chosen.version}",
        key=key,
        servant=servant,
        memory_mb=section.memory_mb,
        hidden=[str(path) for path in hidden],
        own_frames=1,  # `answer` of the servant, which calls the plugin's
    )
    return WorkerPool(setup, first, section.num_workers, section.environment, log)
