"""A slime run as a run of Weights & Biases. A run that continues is the same one there."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from slime.contracts import SampleTables
from slime.types import RL, SFT, RunStatus, TrackedRun
from slime_observers.samples.rows import COLUMNS, table

RUN_ID = "wandb-run-id"
"""File in the run directory."""


class Mode(enum.Enum):
    online = "online"
    offline = "offline"


@dataclass
class WeightsAndBiases:
    """Metrics are named `<stage>/<metric>`, over `<stage>/step`. Its fields are
    the options, `observe.trackers.wandb.<option>`."""

    project: str = "slime"
    """Project."""
    entity: str | None = None
    """User or team; empty: your default one."""
    group: str | None = None
    """Group of runs."""
    tags: list[str] = field(default_factory=list)
    """Tags of the run."""
    samples: bool = True
    """Send a table of what the model answered, too: what `samples/` keeps of a step (`observe.samples_mb`)."""
    mode: Mode | None = None
    """online, or offline: into `wandb/` of the run directory, for `wandb sync`. Empty: as WANDB_MODE says."""

    def __post_init__(self) -> None:
        self._run: Any = None

    def start(self, run: TrackedRun) -> None:
        """Log in if need be, and open the run."""
        import wandb

        file = run.folder / RUN_ID
        if not file.exists():
            import secrets

            file.write_text(secrets.token_hex(4))
        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.group,
            tags=self.tags,
            mode=Mode(self.mode).value if self.mode else None,
            name=run.name,
            id=file.read_text().strip(),
            resume="allow",
            config=dict(run.config),
            allow_val_change=True,  # a resumed run may have other limits
            dir=str(run.folder),
            settings=wandb.Settings(console="off"),  # the terminal is slime's
        )
        for stage in (SFT, RL):
            # W&B's own step only grows, and a resumed run repeats some.
            self._run.define_metric(f"{stage}/step")
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")

    def resume(self, stage: str, step: int) -> None:
        """Steps that run again come with their numbers."""

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """Hand a row to W&B's own process, which sends it."""
        self._run.log({f"{stage}/step": step, **{f"{stage}/{name}": value for name, value in values.items()}})

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """A table for each, over the same step."""
        if not self.samples:
            return
        import wandb

        columns = list(COLUMNS)
        # A label may be a number in one row and text in another.
        tables = {
            f"{stage}/{name}": wandb.Table(columns=columns, data=table(rows), allow_mixed_types=True)
            for name, rows in samples.items()
        }
        self._run.log({f"{stage}/step": step, **tables})

    def finish(self, status: RunStatus) -> None:
        """Wait until all is sent, or on disk, and end W&B's own process.

        That may lose every row of a run that begins under the same id while it still clears the first away.
        """
        import wandb

        self._run.finish(exit_code=0 if status == "finished" else 1)
        wandb.teardown()
