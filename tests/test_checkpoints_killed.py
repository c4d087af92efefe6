"""Real kills while a checkpoint is saved: at every statement, and at random times."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slime.checkpoints import CheckpointStore
from tests.killed import folders_of_killed
from tests.saving import assert_holds, comes_to_hold, save


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


SAVE = """
import sys
from pathlib import Path
import saving
from killed import kill_at_every_line
from slime import checkpoints, digest, driver_state, files

def store_of(folder):
    return checkpoints.CheckpointStore(folder, keep=1)

kill_at_every_line(
    Path(sys.argv[1]),
    [checkpoints, digest, driver_state, files, saving],
    lambda folder: saving.save(store_of(folder), 10),
    lambda folder: saving.save(store_of(folder), 20),
)
"""


def test_a_kill_at_any_statement_leaves_a_good_checkpoint(memory_folder):
    """One child for each line that a save executes, killed there; then the store must hold a good checkpoint, never
    go back behind one, and take the next save."""
    steps = []
    for run in folders_of_killed(SAVE, memory_folder):
        store = CheckpointStore(run, keep=1)
        step = store.latest().step
        assert_holds(store.latest(), step)
        save(store, 30)
        assert_holds(store.latest(), 30)
        assert comes_to_hold(run, "step-000030")
        steps.append(step)
    assert steps == sorted(steps), "once 20 is published it stays"
    assert set(steps) == {10, 20}
    assert len(steps) > 100


SAVE_FOREVER = """
import sys
from pathlib import Path
from slime.checkpoints import CheckpointStore
from saving import save
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
