"""The checkpoint store: real kills at every statement and at random times, real full disks, damaged files."""

import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from slime.checkpoints import CheckpointStore
from slime.errors import SlimeError


@pytest.fixture
def memory_folder(tmp_path):
    """A folder in memory where there is one: hundreds of syncs to a disk would take most of a minute."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def content(step):
    """What `save` writes for a step: names, sizes and bytes all depend on it."""
    return {"model/shard-0.bin": bytes([step % 251]) * (1000 + step), "model/common.pt": str(step).encode() * 50}


def save(store, step):
    with store.saving(step, {"step": step}) as staging:
        for name, data in content(step).items():
            (staging / name).parent.mkdir(exist_ok=True)
            (staging / name).write_bytes(data)


def assert_holds(checkpoint, step):
    assert checkpoint.step == step
    assert checkpoint.driver_state() == {"step": step}
    assert all((checkpoint.path / name).read_bytes() == data for name, data in content(step).items())


def test_what_was_saved_comes_back(folder):
    store = CheckpointStore(folder, keep=2)
    assert store.latest() is None
    save(store, 10)
    assert_holds(store.latest(), 10)
    manifest = json.loads((folder / "step-000010" / "manifest.json").read_text())
    assert manifest["step"] == 10
    assert set(manifest["files"]) == {*content(10), "driver.pkl"}


def test_only_the_newest_are_kept(folder):
    store = CheckpointStore(folder, keep=2)
    for step in (5, 10, 1_000_000):
        save(store, step)
    assert sorted(path.name for path in folder.iterdir()) == ["step-000010", "step-1000000"]
    assert_holds(store.latest(), 1_000_000)


def test_keep_nothing_is_refused(folder):
    with pytest.raises(SlimeError, match=r"train\.checkpoint\.keep: cannot keep 0 checkpoints"):
        CheckpointStore(folder, keep=0)


def truncated(path):
    (path / "model/shard-0.bin").write_bytes(b"x")


def flipped(path):
    data = bytearray((path / "model/shard-0.bin").read_bytes())
    data[500] ^= 1
    (path / "model/shard-0.bin").write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (truncated, "shard-0.bin has 1 bytes instead of 1020"),
        (flipped, "shard-0.bin has other content than was saved"),
        (lambda path: (path / "driver.pkl").unlink(), "driver.pkl is missing"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda path: (path / "manifest.json").write_text("{"), "manifest.json is not JSON"),
    ],
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_is_used(folder, caplog, damage, problem):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    save(store, 20)
    damage(folder / "step-000020")
    assert_holds(store.latest(), 10)
    assert f"skipping damaged checkpoint {folder / 'step-000020'}: {problem}" in caplog.text
    save(store, 20)
    assert_holds(store.latest(), 20)


def test_a_run_does_not_start_over_by_itself_because_every_checkpoint_is_damaged(folder):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    truncated(folder / "step-000010")
    with pytest.raises(SlimeError, match=r"every checkpoint is damaged \(shard-0.bin has 1 bytes instead of 1010\)"):
        store.latest()


def test_a_step_is_saved_once(folder):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    with pytest.raises(AssertionError, match="step 10 is already saved"):
        store.begin(10)
    assert_holds(store.latest(), 10)


def test_a_save_that_fails_leaves_nothing_behind(folder):
    store = CheckpointStore(folder, keep=2)
    save(store, 10)
    with pytest.raises(FileNotFoundError), store.saving(20, {}) as staging:
        (staging / "half").touch() or (staging / "missing").read_bytes()
    assert [path.name for path in folder.iterdir()] == ["step-000010"]


def test_everything_is_synced_before_it_is_published(folder, monkeypatch):
    synced, published = set(), []
    fsync, rename = os.fsync, Path.rename

    def note_fsync(descriptor):
        synced.add(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_rename(self, target):
        published.append((self.name, set(synced)))
        return rename(self, target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    save(CheckpointStore(folder, keep=1), 10)
    data = {"shard-0.bin", "common.pt", "driver.pkl", "model", ".step-000010.partial"}
    assert [name for name, _ in published] == [".manifest.json.new", ".step-000010.partial"]
    assert published[0][1] >= data | {".manifest.json.new"}
    assert "checkpoints" in synced


KILL_AT_LINE = """
import os, signal, sys
from pathlib import Path
from slime import checkpoints, files
from test_checkpoints import save

def kill_at(line):
    left = line
    def trace(frame, event, argument):
        nonlocal left
        if frame.f_code.co_filename not in (checkpoints.__file__, files.__file__, save.__code__.co_filename):
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace
    sys.settrace(trace)

folder, line = Path(sys.argv[1]), 0
while True:
    line += 1
    run = folder / str(line)
    store = checkpoints.CheckpointStore(run, keep=1)
    save(store, 10)
    child = os.fork()
    if child == 0:
        kill_at(line)
        save(store, 20)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    if status == 0:
        break
    assert os.WIFSIGNALED(status), status
print(line - 1)
"""


def test_a_kill_at_any_statement_leaves_a_good_checkpoint(memory_folder):
    """One child for each line that a save executes, killed there; then the store must hold a good checkpoint, never
    go back behind one, and take the next save."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", KILL_AT_LINE, str(memory_folder)]
    parent = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert parent.returncode == 0, parent.stderr
    steps = []
    for line in range(1, int(parent.stdout) + 1):
        store = CheckpointStore(memory_folder / str(line), keep=1)
        step = store.latest().step
        assert_holds(store.latest(), step)
        save(store, 30)
        assert_holds(store.latest(), 30)
        assert [path.name for path in (memory_folder / str(line)).iterdir()] == ["step-000030"]
        steps.append(step)
    assert steps == sorted(steps), "once 20 is published it stays"
    assert set(steps) == {10, 20}
    assert len(steps) > 100


SAVE_FOREVER = """
import sys
from pathlib import Path
from slime.checkpoints import CheckpointStore
from test_checkpoints import save
store, step = CheckpointStore(Path(sys.argv[1]), keep=1), int(sys.argv[2])
while True:
    step += 1
    save(store, step)
    print(step, flush=True)
"""


@pytest.mark.slow
def test_kills_at_random_times_lose_no_published_checkpoint(folder):
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    delays, last = random.Random(7), 0
    for _ in range(20):
        command = [sys.executable, "-c", SAVE_FOREVER, str(folder), str(last)]
        child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
        published = int(child.stdout.readline())
        time.sleep(delays.uniform(0, 0.05))  # a save takes about 10 ms, so that kills fall anywhere in one
        child.send_signal(signal.SIGKILL)
        published = max([published, *(int(line) for line in child.stdout if line.endswith("\n"))])
        child.wait()
        latest = CheckpointStore(folder, keep=1).latest()
        assert latest.step >= published > last
        assert_holds(latest, latest.step)
        last = latest.step


def test_driver_state_must_be_picklable(folder):
    store = CheckpointStore(folder, keep=2)
    with pytest.raises((pickle.PicklingError, AttributeError)), store.saving(10, {"hook": lambda: None}):
        pass
    assert list(folder.iterdir()) == []
