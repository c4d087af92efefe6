"""A real driver with a real Ray actor that hangs: its stack comes out, and a killed driver leaves nothing held."""

import os
import subprocess
import sys

import pytest

from slime.run_dir import RunDir

DRIVER = """
import sys, time
from pathlib import Path
from slime.cluster.launch import ray_cluster
from slime.config.schema import ClusterConfig
from slime.observe import hang
from slime.run_dir import RunDir

class Trainer:
    def __init__(self, logs):
        hang.register(logs / "trainer-0.stack")
    def waits_for_ever(self, entered):
        entered.write_text("")
        time.sleep(600)

run = RunDir.open(Path(sys.argv[1]))
with ray_cluster(ClusterConfig(name="local"), num_slots=1):
    import ray
    trainer = ray.remote(Trainer).remote(run.logs)
    entered = run.logs / "entered"
    trainer.waits_for_ever.remote(entered)
    while not entered.exists():
        time.sleep(0.05)
    print(hang.dump([], run.logs).replace(chr(10), " "), flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_hung_actor_and_a_killed_driver(tmp_path):
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    environment = os.environ | {"RAY_AUTH_MODE": "token"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as driver:
        stack = driver.stdout.readline()
        driver.kill()
    assert stack.startswith("trainer-0 (pid ")
    assert "in waits_for_ever" in stack
    RunDir.open(tmp_path).close()  # Ray's processes inherited no lock, even while they end
