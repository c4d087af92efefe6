"""What an earlier run left: a finished one is not touched, and history is not overwritten."""

import json
from pathlib import Path

import pytest

from slime.compose.compose import compose
from slime.config.schema import Resume
from slime.earlier import beside
from slime.run_dir import RunDir

WORDS = ["+model=glm4-tiny", "+cluster=local", "run.num_steps=4", "sft.num_steps=60"]


def config(home, *words):
    return compose([*WORDS, f"run.dir={home}", "run.name=it", *words])


def leave(home, *, step=None, rows=0, state="complete", saving=False, export=False, words=()):
    """What a run leaves that came to `step`, or saved nothing."""
    path = home / "it"
    with RunDir.open(path) as run:
        run.write_config(config(home, *words))
        if step is not None:
            (run.checkpoints / f"step-{step:06d}").mkdir()
    row = {"stage": "rl", "step": 1, "time": 0.0} | ({"seconds/checkpoint": 0.1} if saving else {})
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for _ in range(rows)))
    (path / "status.json").write_text(json.dumps({"state": state}))
    if export:
        (path / "export").mkdir()


def files(home: Path):
    return {file: file.stat().st_mtime_ns for file in home.rglob("*")}


def refused(home, *words):
    """In a line, without a change of any file; None: there is work."""
    before = files(home)
    found = RunDir.obstacle(config(home, *words), {})
    assert files(home) == before
    return found and str(found)


def test_a_finished_run_says_so(tmp_path):
    leave(tmp_path, step=64, rows=64, export=True)
    assert refused(tmp_path) is None
    said = str(RunDir.finished(config(tmp_path)))
    assert "it: nothing is left to train: 64 of 64 steps are done. Raise `run.num_steps`" in said
    assert RunDir.finished(config(tmp_path, "run.num_steps=5")) is None
    assert RunDir.finished(config(tmp_path, "run.name=other")) is None
    assert RunDir.finished(config(tmp_path, "run.resume=restart")) is None


def test_a_run_that_is_not_at_its_end_is_not_finished(tmp_path):
    leave(tmp_path, step=63, rows=63, export=True)
    assert RunDir.finished(config(tmp_path)) is None


def test_a_model_that_was_not_exported_is_still_to_be_written(tmp_path):
    leave(tmp_path, step=64, rows=64)
    assert RunDir.finished(config(tmp_path)) is None
    assert RunDir.finished(config(tmp_path, "train.checkpoint.export_hf=false"))
    assert refused(tmp_path, "train.optimizer.lr=1e-3") is None


def test_other_keys_do_not_change_the_record_of_a_finished_run(tmp_path):
    leave(tmp_path, step=64, rows=64, export=True)
    said = refused(tmp_path, "train.optimizer.lr=1e-3")
    assert "64 of 64 steps are done, with other keys (train.optimizer.lr: 0.0002 -> 0.001)" in said
    assert "Set another `run.name`" in said
    assert refused(tmp_path, "train.optimizer.lr=1e-3", "run.num_steps=5") is None, "there is a step to train with it"
    assert refused(tmp_path, "run.progress=false", "observe.samples_mb=3") is None, "these train nothing anyway"


def test_fewer_steps_than_are_done_are_no_work(tmp_path):
    leave(tmp_path, step=64, rows=64)
    assert "64 of 63 steps are done" in str(RunDir.finished(config(tmp_path, "run.num_steps=3")))


@pytest.mark.parametrize(
    "left",
    [{"state": "complete"}, {"state": "failed", "saving": True}, {"state": "killed", "export": True}, {"state": None}],
    ids=["finished", "saved", "exported", "unknown"],
)
def test_metrics_without_a_checkpoint_are_not_overwritten(tmp_path, left):
    leave(tmp_path, rows=19, **left)
    said = refused(tmp_path)
    assert "it: an earlier run left 19 steps of metrics here, and no checkpoint to continue from" in said
    assert "another `run.name`" in said
    assert "`run.resume=restart`" in said
    assert refused(tmp_path, "run.name=other") is None
    assert refused(tmp_path, "run.resume=restart") is None


def test_a_run_that_died_before_it_saved_begins_again(tmp_path):
    """Its rows are set aside by `MetricsLog`; a scheduler that starts the same command again is not refused."""
    leave(tmp_path, rows=3, state="killed")
    assert refused(tmp_path) is None
    assert "3 steps of metrics" in refused(tmp_path, "train.optimizer.lr=1e-3"), "these are of another run"
    assert "3 steps of metrics" in refused(tmp_path, "run.seed=3")


def test_no_metrics_are_no_history(tmp_path):
    leave(tmp_path, rows=0)
    assert refused(tmp_path) is None
    assert refused(tmp_path, "run.seed=3") is None


def test_restart_moves_what_is_there(tmp_path):
    leave(tmp_path, step=64, rows=64, export=True)
    before = sorted(file.name for file in (tmp_path / "it").iterdir())
    (tmp_path / "it.1").mkdir()
    with RunDir.open(tmp_path / "it", Resume.restart) as run:
        assert run.write_config(config(tmp_path, "run.resume=restart", "run.seed=3")) == []
        assert not run.metrics.exists()
        assert compose_resume(run) == "auto", "who continues this run, does not begin it once more"
    assert sorted(file.name for file in (tmp_path / "it.2").iterdir()) == before
    assert beside(tmp_path / "it").name == "it.3"


def compose_resume(run):
    return next(line.split(": ")[1] for line in run.config.read_text().splitlines() if line.startswith("  resume:"))


def test_restart_makes_a_run_where_none_was(tmp_path):
    RunDir.open(tmp_path / "it", Resume.restart).close()
    assert [folder.name for folder in tmp_path.iterdir()] == ["it"]


def test_a_rate_that_decays_over_more_steps_is_told(tmp_path):
    cosine = ["train.lr_decay=cosine"]
    leave(tmp_path, step=62, words=cosine)
    with RunDir.open(tmp_path / "it") as run:
        [said] = run.write_config(config(tmp_path, *cosine, "run.num_steps=8"))
        assert said == "run.num_steps: 4 -> 8 (the learning rate decays over all steps, so it is another from here on)"
        said = run.write_config(config(tmp_path, *cosine, "train.lr_decay_steps=4", "run.num_steps=9"))
        assert "decays" not in " ".join(said)
