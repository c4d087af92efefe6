"""MLflow for real: what its own client finds in the store that the tracker wrote to."""

import importlib.util
import json
import math
from pathlib import Path

import pytest

from slime.compose.compose import examine
from slime_observers.plugin import slime_check
from slime_observers.samples.rows import COLUMNS, table
from slime_testing.plugins import SHOWN, check_tracker

RUN = ["+model=glm4-tiny", "+cluster=local"]
HERE = importlib.util.find_spec("mlflow") is not None


@pytest.mark.skipif(not HERE, reason="mlflow is not installed: pip install mlflow-skinny")
def test_a_resumed_run_is_one_run_with_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    uri = f"file://{tmp_path}/mlruns"
    check_tracker("mlflow", tmp_path, {"tracking_uri": uri, "experiment": "e", "tags": {"who": "me"}})
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("e")
    assert experiment is not None
    [run] = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == (tmp_path / "mlflow-run-id").read_text()
    assert (run.info.status, run.info.run_name, run.data.tags["who"]) == ("FINISHED", "tracked", "me")
    assert run.data.params["run.seed"] == "3", "as when the run began"
    rewards = client.get_metric_history(run.info.run_id, "rl/rollout/reward_mean")
    assert [(metric.step, metric.value) for metric in rewards] == [(0, 0.25), (1, 0.25), (2, 0.25), (2, 0.25)]
    assert rewards[1].timestamp == 1_800_000_001_000
    shown = tmp_path / "mlruns" / experiment.experiment_id / run.info.run_id / "artifacts/rl/rollout/samples"
    assert sorted(path.name for path in shown.iterdir()) == [f"step-00000{step}.json" for step in range(3)]
    assert json.loads((shown / "step-000002.json").read_text()) == {"columns": list(COLUMNS), "data": table(SHOWN)}
    assert all(math.isnan(metric.value) for metric in client.get_metric_history(run.info.run_id, "rl/train/loss"))


def test_a_run_that_knows_no_server_is_refused_by_the_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    problem, *missing = examine([*RUN, "observe.trackers.mlflow=true"]).problems
    assert "tracking_uri is not set, nor MLFLOW_TRACKING_URI" in str(problem)
    assert len(missing) == (not HERE), "the package is named where it is not installed"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:1")
    assert len(examine([*RUN, "observe.trackers.mlflow=true"]).problems) == (not HERE)
    assert slime_check(examine(RUN).cfg.observe) == []
