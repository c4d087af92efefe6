"""A slime run as a run of Trackio. A run that continues is the same one there."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

from slime.contracts import SampleTables
from slime.types import RunStatus, TrackedRun
from slime_observers.samples.rows import COLUMNS, table

RUN_NAME = "trackio-run-name"
"""File in the run directory; there once Trackio knows the run."""


@dataclass
class Trackio:
    """Metrics are named `<stage>/<metric>`. Its fields are
    the options, `observe.trackers.trackio.<option>`."""

    project: str = "slime"
    """Project."""
    group: str | None = None
    """Group of runs."""
    space_id: str | None = None
    """Space of the Hugging Face hub that shows the project, owner/name; empty: TRACKIO_SPACE_ID, or this machine."""
    samples: bool = True
    """Send a table of what the model answered, too: what `samples/` keeps of a step (`observe.samples_mb`)."""

    def __post_init__(self) -> None:
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        """Open the run, or the one that this run directory began."""
        from trackio.context_vars import current_run

        import trackio

        file = run.folder / RUN_NAME
        known = file.read_text(encoding="utf-8") if file.exists() else None
        with redirect_stdout(io.StringIO()):  # the terminal is slime's
            self._run = trackio.init(
                project=self.project,
                name=known or run.name,
                group=self.group,
                space_id=self.space_id,
                config=dict(run.config),
                resume="allow" if known else "never",
                embed=False,
                auto_log_gpu=False,  # by threads that outlive a run that fails
                auto_log_cpu=False,
            )
        current_run.set(None)  # else it is finished once more, aloud, as the process exits
        file.write_text(self._run.name, encoding="utf-8")

    def resume(self, stage: str, step: int) -> None:
        """Steps that run again come with their numbers."""

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """Hand a row to Trackio's thread, which stores or sends it."""
        self._run.log({f"{stage}/{name}": value for name, value in values.items()}, step=step)

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """A table for each, of the same step."""
        if not self.samples:
            return
        import trackio

        columns = list(COLUMNS)
        tables = {f"{stage}/{name}": trackio.Table(columns, table(rows)) for name, rows in samples.items()}
        self._run.log(tables, step=step)

    def finish(self, status: RunStatus) -> None:
        """Wait until all is stored or sent."""
        with redirect_stdout(io.StringIO()):
            self._run.finish()
