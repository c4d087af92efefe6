"""The run directory: one holder, resume rules, refused configurations. Locks are taken by real processes."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from slime.config.schema import Resume, SlimeConfig
from slime.errors import SlimeError
from slime.run_config import read_config
from slime.run_dir import RunDir, with_resume_hint

HOLD = """
import sys
from pathlib import Path
from slime.run_dir import RunDir
run = RunDir.open(Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "runs" / "tiny"


def config(*overrides):
    """A configuration without missing values, changed by dotted overrides."""
    needed = ["run.name=tiny", "run.num_steps=10", "model.name=tiny", "model.family=f", "model.path=m"]
    needed += ["cluster.name=local", "data.path=d", "reward.name=r"]
    merged = OmegaConf.merge(OmegaConf.structured(SlimeConfig), OmegaConf.from_dotlist([*needed, *overrides]))
    return OmegaConf.to_object(merged)


def saved_run(path, *overrides):
    """A closed run directory with a configuration and something published as a checkpoint."""
    with RunDir.open(path) as run:
        run.write_config(config(*overrides))
        (run.checkpoints / "step-000005").mkdir()


def hold(path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    return holder


def test_open_makes_the_folders(path):
    with RunDir.open(path) as run:
        assert {folder.name for folder in path.iterdir() if folder.is_dir()} == {
            "checkpoints",
            "logs",
            "samples",
        }
        assert run.export == path / "export"


def test_a_second_run_is_told_who_holds_the_directory(path):
    holder = hold(path)
    with holder:
        with pytest.raises(SlimeError, match=rf"another run is using this directory \(process {holder.pid} on "):
            RunDir.open(path)
        holder.stdin.close()
    RunDir.open(path).close()


def test_a_killed_holder_leaves_the_directory_free(path):
    with hold(path) as holder:
        holder.kill()
    RunDir.open(path).close()


def test_a_run_notices_that_its_directory_is_gone(path):
    with RunDir.open(path) as run:
        run.require_intact()
        shutil.rmtree(path)
        with pytest.raises(SlimeError, match=f"^{path}: it was deleted or replaced while the run was using it"):
            run.require_intact()


def test_a_run_notices_that_its_directory_is_another_one(path):
    """Moved away, and somebody else's run in its place."""
    with RunDir.open(path) as run:
        path.rename(path.with_name("moved"))
        with RunDir.open(path), pytest.raises(SlimeError, match=f"^{path}/lock: it was deleted or replaced"):
            run.require_intact()


def test_what_fails_because_the_directory_is_gone_says_so(path):
    gone = pytest.raises(SlimeError, match=f"^{path}: it was deleted or replaced")
    with gone as raised, RunDir.open(path) as run:
        shutil.rmtree(path)
        (run.checkpoints / "new").mkdir()
    assert isinstance(raised.value.__context__, FileNotFoundError)
    RunDir.open(path).close()


def test_other_errors_pass_through(path):
    with pytest.raises(FileNotFoundError), RunDir.open(path) as run:
        (run.checkpoints / "missing" / "new").mkdir()


def test_config_and_plugins_are_written_and_read_back(path):
    with RunDir.open(path) as run:
        run.write_config(config("train.optimizer.lr=1e-5", "algo.kl_estimator=k3"))
        run.write_plugins({"installed": ["slime"]})
        assert OmegaConf.load(run.config).train.optimizer.lr == 1e-5
        assert OmegaConf.load(run.config).algo.kl_estimator == "k3"
        assert json.loads(run.plugins.read_text()) == {"installed": ["slime"]}


@pytest.mark.parametrize("override", ["model.family=other", "run.seed=1", "train.megatron.num_layers=3", "sft.lr=1"])
def test_another_configuration_is_refused_by_key_and_the_old_one_stays(path, override):
    saved_run(path)
    before = (path / "config.yaml").read_bytes()
    with RunDir.open(path) as run, pytest.raises(SlimeError, match=override.split("=")[0]):
        run.write_config(config(override))
    assert (path / "config.yaml").read_bytes() == before


@pytest.mark.parametrize(
    ("override", "change"),
    [
        ("run.num_steps=20", "run.num_steps: 10 -> 20"),
        ("observe.samples_mb=1", "observe.samples_mb: 200.0 -> 1.0"),
        ("cluster.num_trainers=2", "cluster.num_trainers: 1 -> 2"),
        (
            "train.megatron.tensor_model_parallel_size=2",
            "train.megatron.tensor_model_parallel_size: - -> 2",
        ),
    ],
)
def test_a_resumed_run_may_change_how_it_runs_and_says_so(path, override, change, caplog):
    saved_run(path)
    with RunDir.open(path) as run:
        assert run.write_config(config(override)) == [change]
        assert f"{path} continues with changes: {change}" in caplog.messages
        assert run.write_config(config(override)) == []


def test_a_start_that_dies_leaves_the_record_of_the_checkpoint(path):
    """The run goes on from weights of another configuration than the last start's."""
    saved_run(path)
    with RunDir.open(path) as run:
        run.record_config(path / "checkpoints/step-000005")
        changed = ["train.optimizer.lr=1e-4", "run.num_steps=20"]
        run.write_config(config(*changed))  # and dies before it saves
        said = run.write_config(config(*changed))
        assert [change.partition(":")[0] for change in said] == ["run.num_steps", "train.optimizer.lr"]
        (run.checkpoints / "step-000006").mkdir()
        run.record_config(run.checkpoints / "step-000006")
        assert run.write_config(config(*changed)) == []


def test_without_a_checkpoint_any_configuration_may_start_over(path):
    with RunDir.open(path) as run:
        run.write_config(config())
        assert run.write_config(config("model.family=other")) == []


def test_never_refuses_a_directory_that_holds_a_run(path):
    with RunDir.open(path, Resume.never) as run:
        run.write_config(config())
    with pytest.raises(SlimeError, match="already holds a run"):
        RunDir.open(path, Resume.never)
    RunDir.open(path, Resume.auto).close()


def test_must_refuses_to_start_from_nothing_and_makes_no_folder(path):
    with pytest.raises(SlimeError, match="no checkpoint to resume from"):
        RunDir.open(path, Resume.must)
    assert not path.exists()
    saved_run(path)
    RunDir.open(path, Resume.must).close()


def test_a_folder_of_another_name_is_no_checkpoint(path):
    with RunDir.open(path) as run:
        (run.checkpoints / "step-abc1").mkdir()
    with pytest.raises(SlimeError, match="no checkpoint to resume from"):
        RunDir.open(path, Resume.must)


@pytest.mark.parametrize("name", ["file", "file/inside"])
def test_a_file_in_the_way(tmp_path, name):
    (tmp_path / "file").write_text("")
    with pytest.raises(SlimeError, match=r"cannot make the directory \((File exists|Not a directory)\)"):
        RunDir.open(tmp_path / name)


def test_a_folder_that_cannot_be_made():
    with pytest.raises(SlimeError, match="cannot make the directory"):
        RunDir.open("/proc/slime-run")  # procfs refuses new folders to everybody, root included


def obstacle(path, *overrides):
    """What a plan says of a run in `path`; it leaves the place as it was."""
    before = {file: file.stat().st_mtime_ns for file in path.parent.rglob("*")}
    found = RunDir.obstacle(config(f"run.dir={path.parent}", *overrides), {})
    assert {file: file.stat().st_mtime_ns for file in path.parent.rglob("*")} == before
    return found and str(found)


def test_a_plan_finds_nothing_in_the_way_of_a_new_or_resumed_run(path):
    assert obstacle(path) is None
    saved_run(path, f"run.dir={path.parent}")
    assert obstacle(path) is None
    assert obstacle(path, "run.num_steps=20") is None


def test_a_plan_says_what_the_run_would_say(path):
    saved_run(path, f"run.dir={path.parent}")
    assert "holds a run of another configuration (run.seed: 1234 -> 3)" in obstacle(path, "run.seed=3")
    assert "already holds a run and `run.resume` is never" in obstacle(path, "run.resume=never")
    assert "no checkpoint to resume from" in obstacle(path, "run.resume=must", "run.name=other")


def test_a_plan_names_the_holder_and_does_not_disturb_it(path):
    holder = hold(path)
    try:
        assert f"another run is using this directory (process {holder.pid} on " in obstacle(path)
    finally:
        holder.kill()
        holder.wait()
    assert obstacle(path) is None


def test_a_plan_finds_a_file_in_the_way(tmp_path):
    (tmp_path / "runs").touch()
    found = RunDir.obstacle(config(f"run.dir={tmp_path / 'runs'}"), {})
    assert f"cannot make the directory ({tmp_path / 'runs'} is a file)" in str(found)


@pytest.mark.parametrize(
    ("run_dir", "others", "todo"), [("/proc/x", {}, "`run.dir` or `run.name`"), ("", "/proc", "`key`")]
)
def test_a_plan_finds_a_folder_in_which_nobody_makes_one(tmp_path, run_dir, others, todo):
    """Of root too, to whom /proc says that it may be written."""
    folders = {"key": Path(others, "weights")} if others else {}
    found = RunDir.obstacle(config(f"run.dir={run_dir or tmp_path}"), folders)
    place = "/proc/weights" if others else f"{run_dir}/tiny"
    assert str(found) == f"{place}: cannot make the directory (/proc cannot be written). Set {todo}."
    assert list(tmp_path.iterdir()) == []


def test_a_ctrl_c_says_where_the_same_command_continues(tmp_path):
    with RunDir.open(tmp_path) as run:
        for saved, note in (
            (None, "nothing was saved yet"),
            ("step-000004", "the same command continues after sft 4"),
            ("step-000035", "the same command continues after rl 5"),
        ):
            if saved:
                (run.checkpoints / saved).mkdir(parents=True)
            with pytest.raises(KeyboardInterrupt) as raised, with_resume_hint(run, 30):
                raise KeyboardInterrupt
            assert raised.value.__notes__ == [note]


@pytest.mark.parametrize(
    "text",
    ["[1]", "run: 3", "run: {", "a: b: c", "\x00", "run: {seed: '${{x(1)}}'}", "run: ${x:[}", "a: !!python/object:a {}",
     "[" * 100_000, "a: &a [*a]", "run: {? [] : 1}"],
    ids=lambda text: text[:20],
)  # fmt: skip
def test_a_file_that_is_no_config_is_one_line(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(SlimeError, match=r"config\.yaml: this is not the config of a run \(") as caught:
        read_config(tmp_path / "config.yaml")
    assert len(str(caught.value).splitlines()) == 1


def test_a_config_is_read(tmp_path):
    (tmp_path / "config.yaml").write_text("run: {seed: 7, name: '${oc.env:HOME}'}\ntrain: {lr: 1e-3}\n")
    read = read_config(tmp_path / "config.yaml")
    assert read == {"run": {"seed": 7, "name": "${oc.env:HOME}"}, "train": {"lr": 1e-3}}
