"""W&B for real, offline: what its own reader finds in the files that `wandb sync` would send."""

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slime.compose.compose import examine
from slime_observers.samples.rows import COLUMNS, table
from slime_testing.plugins import SHOWN, check_tracker

BLOCK, FULL, LAST = 32768, 1, 4
RUN = ["+model=glm4-tiny", "+cluster=local"]


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B keeps settings and a cache in the home folder."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_MODE", raising=False)


def test_a_resumed_run_is_one_run_with_every_row(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    check_tracker("wandb", folder, {"project": "p", "tags": ["a"], "mode": "offline"})
    run_id = (folder / "wandb-run-id").read_text()
    first, second = sorted(folder.glob("wandb/offline-run-*/run-*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    assert {first.stem, second.stem} == {f"run-{run_id}"}
    rows = [*history(first), *history(second)]
    assert [row["rl/step"] for row in rows] == [0, 0, 1, 1, 2, 2, 2, 2], "metrics, then samples"
    rows, shown = rows[::2], rows[1::2]
    assert all(row["rl/rollout/reward_mean"] == 0.25 and math.isnan(float(row["rl/train/loss"])) for row in rows)
    tables = [json.loads((first.parent / "files" / row["rl/rollout/samples.path"]).read_text()) for row in shown[:3]]
    assert tables[0] == {"columns": list(COLUMNS), "data": table(SHOWN)}
    [of_run, _] = [record.run for path in (first, second) for record in records(path) if record.HasField("run")]
    assert (of_run.project, of_run.display_name, list(of_run.tags)) == ("p", "tracked", ["a"])
    config = {item.key: json.loads(item.value_json) for item in of_run.config.update}
    assert config["run"] == {"name": "tracked", "seed": 3}


def history(path: Path) -> list[dict[str, float]]:
    found = [record.history for record in records(path) if record.HasField("history")]
    return [{".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in row.item} for row in found]


def records(path: Path) -> Iterator[Any]:
    """W&B's records in a log of LevelDB's format: blocks of 32 KiB, and pieces with checksum, length and kind."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, record = path.read_bytes(), 7, b""  # behind a header
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (FULL, LAST):
            yield Record.FromString(record)
            record = b""


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("observe.trackers.wandb.mode=ofline", "It takes online | offline or null."),
        ("observe.trackers.wandb.projekt=x", "Did you mean 'project'?"),
        ("observe.trackers.wandb=3", "Write observe.trackers.wandb=true, or observe.trackers.wandb.<option>=<value>."),
        ("observe.trackers.wandbb=true", "Did you mean 'wandb'?"),
    ],
)
def test_wrong_settings_are_found_by_the_plan(word: str, said: str) -> None:
    [problem] = examine([*RUN, word]).problems
    assert said in str(problem)


def test_it_is_off_unless_chosen() -> None:
    assert "wandb" not in examine(RUN).cfg.observe.trackers
    chosen = examine([*RUN, "observe.trackers.wandb=true", "observe.trackers.tensorboard=false"])
    assert chosen.problems == []
    assert list(chosen.cfg.observe.trackers) == ["wandb"]
    assert chosen.cfg.observe.trackers["wandb"]["project"] == "slime"
