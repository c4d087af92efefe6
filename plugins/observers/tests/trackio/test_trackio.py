"""Trackio for real: what its own reader finds in the project that the tracker wrote."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from slime.compose.compose import examine
from slime_observers.samples.rows import COLUMNS, table
from slime_testing.plugins import SHOWN

RUN = ["+model=glm4-tiny", "+cluster=local"]
HERE = importlib.util.find_spec("trackio") is not None
TRACK = """
import json, sys
from pathlib import Path
from slime_testing.plugins import check_tracker
check_tracker("trackio", Path(sys.argv[1]), {"project": "p", "group": "g"})
from trackio.sqlite_storage import SQLiteStorage
runs = SQLiteStorage.get_runs("p")
print(json.dumps([runs, SQLiteStorage.get_logs("p", "tracked"), SQLiteStorage.get_run_config("p", "tracked")]))
"""


@pytest.mark.skipif(not HERE, reason="trackio is not installed: pip install trackio")
def test_a_resumed_run_is_one_run_with_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))  # which it reads when it is imported
    done = subprocess.run([sys.executable, "-c", TRACK, str(tmp_path)], capture_output=True, text=True, check=True)
    *before, said = done.stdout.splitlines()
    assert before == [], "the terminal is slime's"
    runs, rows, config = json.loads(said)
    assert runs == ["tracked"]
    assert [row["step"] for row in rows] == [0, 0, 1, 1, 2, 2, 2, 2], "metrics, then samples"
    assert all(row["rl/rollout/reward_mean"] == 0.25 for row in rows[::2])
    shown = rows[1]["rl/rollout/samples"]["_value"]
    assert [[row[name] for name in COLUMNS] for row in shown] == table(SHOWN)
    assert (config["run"]["name"], config["_Group"]) == ("tracked", "g")


def test_it_is_off_unless_chosen_and_named_where_it_is_missing() -> None:
    assert "trackio" not in examine(RUN).cfg.observe.trackers
    chosen = examine([*RUN, "observe.trackers.trackio=true", "observe.trackers.tensorboard=false"])
    assert ["pip install 'slime-observers[trackio]'" in str(problem) for problem in chosen.problems] == [True] * (
        not HERE
    )
    assert chosen.cfg.observe.trackers["trackio"]["project"] == "slime"
    [problem] = examine([*RUN, "observe.trackers.trackio.projekt=x"]).problems[-1:]
    assert "Did you mean 'project'?" in str(problem) or not HERE
