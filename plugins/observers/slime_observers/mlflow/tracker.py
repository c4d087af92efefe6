"""A slime run as a run of MLflow. A run that continues is the same one there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slime.contracts import SampleTables
from slime.types import RunStatus, TrackedRun
from slime_observers.samples.rows import COLUMNS, table

RUN_ID = "mlflow-run-id"
"""File in the run directory."""
ENDS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
LIMITS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2"}
"""Limits by which a server that is away holds the run up for seconds: MLflow's own 120 s and 7 retries are minutes."""
MAX_PARAMS, MAX_VALUE = 100, 6000
"""Parameters of a request, and characters of a value."""


@dataclass
class MLflow:
    """Metrics are named `<stage>/<metric>`; the config's keys are parameters. Its fields are
    the options, `observe.trackers.mlflow.<option>`."""

    tracking_uri: str | None = None
    """The tracking server; empty: MLFLOW_TRACKING_URI."""
    experiment: str = "slime"
    """Experiment; made if there is none of that name."""
    samples: bool = True
    """Send what the model answered, too: what `samples/` keeps of a step (`observe.samples_mb`), an artifact each."""
    tags: dict[str, str] = field(default_factory=dict)
    """Tags of the run."""

    def __post_init__(self) -> None:
        self._id = ""
        self._client: Any = None

    def start(self, run: TrackedRun) -> None:
        """Open the run at the server, or the one that this run directory began."""
        for name, value in LIMITS.items():
            os.environ.setdefault(name, value)
        from mlflow import MlflowClient

        self._client, file = MlflowClient(self.tracking_uri), run.folder / RUN_ID
        if file.exists():
            self._id = file.read_text().strip()
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {"mlflow.runName": run.name, **self.tags}
        self._id = self._client.create_run(self._experiment(), tags=tags).info.run_id
        self._log_params(list(_flat(run.config)))
        file.write_text(self._id)

    def _experiment(self) -> str:
        name = self.experiment
        found = self._client.get_experiment_by_name(name)
        return str(found.experiment_id if found else self._client.create_experiment(name))

    def _log_params(self, params: Sequence[tuple[str, str]]) -> None:
        from mlflow.entities import Param

        for first in range(0, len(params), MAX_PARAMS):
            batch = [Param(name, value[:MAX_VALUE]) for name, value in params[first : first + MAX_PARAMS]]
            self._client.log_batch(self._id, params=batch)

    def resume(self, stage: str, step: int) -> None:
        """Steps that run again come with their numbers."""

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """Send a row."""
        from mlflow.entities import Metric

        metrics = [Metric(f"{stage}/{name}", value, int(time * 1000), step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """An artifact `<stage>/rollout/samples/step-000012.json` that `mlflow.load_table` reads."""
        if not self.samples:
            return
        for name, rows in samples.items():
            # As MLflow's log_table writes it, which would want pandas.
            split = {"columns": COLUMNS, "data": table(rows)}
            self._client.log_dict(self._id, split, f"{stage}/{name}/step-{step:06d}.json")

    def finish(self, status: RunStatus) -> None:
        """Close the run at the server."""
        self._client.set_terminated(self._id, ENDS[status])


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Dotted keys; characters that MLflow refuses in a name become underscores."""
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        else:
            yield "".join(c if c.isalnum() or c in "_-. /" else "_" for c in name), str(value)
