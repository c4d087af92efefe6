"""A whole run on a Ray cluster that was there before, and stays; of a model family whose parts no other run has."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from slime.config.paths import resolve
from slime_testing.patience import Patience, family, run_within
from tests.running import NO_CHECKPOINTS, Run, command_of, end_family
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "RAY_USAGE_STATS_ENABLED": "0"}
START_S = 200.0
"""Of Ray on a machine that does much else."""
FREE_CPUS = """
import ray, sys, time
ray.init(sys.argv[1], logging_level="ERROR")
for _ in range(600):  # a node reports what was given back a moment later
    if (free := ray.available_resources().get("CPU", 0)) == 2:
        break
    time.sleep(0.1)
print(free)
"""


@dataclass
class Head:
    """A Ray head node of this test's own."""

    address: str
    process: psutil.Process

    def family(self) -> set[psutil.Process]:
        return set(self.process.children(recursive=True))


@pytest.fixture
def head() -> Iterator[Head]:
    """Started in a folder of its own: not that of the run, and with a path short enough for Ray's sockets."""
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    ray = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--disable-usage-stats"]
    sizes = ["--port=0", "--num-cpus=2", "--object-store-memory=100000000", "--include-dashboard=false"]
    command = [*ray, *sizes, f"--temp-dir={folder}"]
    with (folder / "head.log").open("wb") as log:
        process = psutil.Popen(command, cwd=folder, env=os.environ | ENVIRONMENT, stdout=log, stderr=log)
    try:
        yield Head(_address(folder, process), process)
    finally:
        end_family([process])
        until(lambda: is_removed(folder))


def is_removed(folder: Path) -> bool:
    """Try it: one of Ray's that was started in the last moment may still write there."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


def _address(folder: Path, process: psutil.Popen) -> str:
    log, patience = folder / "head.log", Patience(START_S, lambda: family(process.pid))
    patience.wait_for(lambda: "Ray runtime started" in log.read_text() or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    assert "Ray runtime started" in log.read_text(), log.read_text()
    (port,) = folder.glob("session_2*/gcs_server_port_*")
    return f"127.0.0.1:{port.read_text()}"


def named(name: str, processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    return [process for process in processes if name in command_of(process)]


def test_the_cluster_outlives_the_run_and_keeps_nothing_of_it(head: Head, tmp_path: Path) -> None:
    """At a temperature: engine and trainer agree on the distribution that was sampled from as they do at 1. The model
    has a prediction layer, which learns along, and transformers lacks its family; what is exported is a model again."""
    from slime_plugin_mimo import hf

    shutil.copytree(resolve("pkg://slime_plugin_mimo/assets/mimo-tiny"), tmp_path / "model")
    settings = {
        "cluster.ray_address": head.address,
        "model.path": "model",
        "rollout.sampling.temperature": 0.7,
        "rollout.prompts_per_step": 4,
        "rollout.samples_per_prompt": 4,
        "train.steps_per_rollout": 2,
        **NO_CHECKPOINTS,
        "run.num_steps": 6,
        "sft.num_steps": 2,
        "sft.lr_warmup_steps": 1,
        "eval.path": "null",
        "algo.entropy_coef": 0.01,  # an untrained model earns nothing; this moves it
    }
    before = head.family()
    run = Run(tmp_path, model="mimo-tiny", settings=settings, environment=ENVIRONMENT, shortened={}).start()
    run.until(lambda: run.has_step("rl", 1))
    driver = psutil.Process(run.process.pid)
    run.family = [*(head.family() - before), *driver.children(recursive=True)]
    found = {
        name: named(name, run.family)
        for name in ("ray::TrainerActor", "ray::EngineActor", "slime_sglang.engine.launcher")
    }
    assert all(found.values()), found
    scratch = Path(found["slime_sglang.engine.launcher"][0].environ()["SLIME_ENGINE_SCRATCH"])
    assert scratch.is_dir()
    run.succeed()
    assert run.strays() == []
    assert not scratch.exists()
    client = [sys.executable, "-c", FREE_CPUS, head.address]
    asked = run_within(START_S, client, env=os.environ | ENVIRONMENT, check=False)
    assert asked.stdout.strip() == "2.0", asked.stderr
    # fp32 on both sides, the same tokens: what is left is the order of additions.
    assert max(row["train/logprob_diff_max"] for row in run.rows("rl") if "train/loss" in row) < 1e-4
    hf.register()
    from transformers import AutoModelForCausalLM

    _, loading = AutoModelForCausalLM.from_pretrained(run.path / "export", output_loading_info=True)
    assert not any(loading.values()), "missing, unexpected or misshapen tensors"
