"""The laptop run on GPUs, shortened: nothing changes but the cluster."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime.net import reserved_port
from slime_cluster.ray.starter import make_token
from tests.gpu_runs import DRAFTS, OVER_HOSTS, PAIRS, PLAIN, SMALL, SPREADS, GpuRun
from tests.running import Run, end_family

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GAP = 0.02
"""Nats a token between engine and trainer in bf16; seen are 0.004."""


def check_gaps(run: Run, num_steps: int, gap: float) -> list[dict[str, Any]]:
    """Every step of the run that has ended, each of which had its publish and receipt."""
    steps = [row for row in run.rows("rl") if row.get("train/loss") is not None]
    logging.warning("nats a token: %s", [row["train/logprob_diff_mean"] for row in steps])  # pytest -rP shows it
    assert [row["step"] for row in steps] == [*range(1, num_steps + 1)]
    assert all(row["train/logprob_diff_mean"] < gap for row in steps)
    return steps


def each(runs: Mapping[str, GpuRun]) -> pytest.MarkDecorator:
    """A test of each run, where its GPUs are."""
    return pytest.mark.parametrize(
        "of", [pytest.param(of, marks=pytest.mark.gpu(of.gpus), id=name) for name, of in runs.items()]
    )


def start(of: GpuRun, folder: Path, **settings: Any) -> Run:
    return Run(folder, of.model, of.cluster, {**SMALL, **of.settings, **settings}, silence_s=300).start()


@each(PLAIN)
def test_run(of: GpuRun, tmp_path: Path) -> None:
    run = start(of, tmp_path).succeed()
    steps = check_gaps(run, 4, GAP)
    assert all(row[f"memory/train_{name}"] > 0 for row in steps for name in ("gib", "host_gib"))
    planned = ["memory/train_planned_gib" in row for row in [*run.rows("sft"), *run.rows("rl")]]
    assert planned.count(True) == 1  # a session's first step
    assert "trainers held, GiB" in (run.path / "summary.txt").read_text()
    assert (run.path / "export/model.safetensors").exists()


@each(DRAFTS)
def test_run_that_drafts(of: GpuRun, tmp_path: Path) -> None:
    """Engines draft with the model's own prediction layer, which every publish renews."""
    steps = [row for row in start(of, tmp_path).succeed().rows("rl") if row.get("train/loss") is not None]
    assert all(row["train/logprob_diff_mean"] < GAP for row in steps)
    # A layer that is not the policy's, or a random one, guesses one token of 128.
    assert all(row["rollout/draft_accept_rate"] > 0.2 for row in steps)


def node_address() -> str:
    """As Ray finds it."""
    from ray.util import get_node_ip_address

    return str(get_node_ip_address())


@contextmanager
def two_raylets(folder: Path, num_gpus: int) -> Iterator[str]:
    """The address of a Ray cluster of two nodes that are both this host, with so many GPUs each."""
    ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", "--num-cpus=8"]
    ray += [f"--num-gpus={num_gpus}", "--object-store-memory=1000000000", f"--temp-dir={folder}"]
    environment = os.environ | {"RAY_AUTH_MODE": "token"}
    make_token()
    nodes: list[psutil.Popen] = []
    with reserved_port(node_address()) as port:
        address = f"{node_address()}:{port}"
    try:
        for node, more in enumerate((["--head", f"--port={port}"], [f"--address={address}"])):
            own = range(node * num_gpus, (node + 1) * num_gpus)
            with (folder / f"node{node}.log").open("wb") as log:
                visible = environment | {"CUDA_VISIBLE_DEVICES": ",".join(map(str, own))}
                nodes.append(psutil.Popen([*ray, *more], env=visible, stdout=log, stderr=log))
            while "Ray runtime started" not in (folder / f"node{node}.log").read_text():
                assert nodes[node].poll() is None, (folder / f"node{node}.log").read_text()
                time.sleep(0.5)
        yield address
    finally:
        end_family(nodes)


@each(OVER_HOSTS)
def test_an_engine_over_two_hosts(of: GpuRun, tmp_path: Path) -> None:
    """Its processes have the GPUs of a host each; trainer ranks of the second host hand their weights to the
    tensor-parallel ranks there."""
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, two_raylets(Path(folder), of.gpus // 2) as address:
        run = start(of, tmp_path, **{"cluster.ray_address": address}).succeed()
    check_gaps(run, of.settings.get("run.num_steps", 4), GAP)
    assert {path.name for path in (run.path / "logs").glob("engine-0*.log")} == {"engine-0.log", "engine-0-node1.log"}


ROUTED_GAP = 0.05
"""Nats a token in bf16 with 64 experts, of which rounding chooses others: seen with one rank are 0.0115 to 0.021."""


@each(SPREADS)
def test_run_with_attention_by_data_and_experts_over_ranks(of: GpuRun, tmp_path: Path) -> None:
    """Ranks of an engine, colocated with as many of the trainer: each takes its shards from the trainer's rank."""
    gap = ROUTED_GAP if of.model == "glm4.7-flash" else GAP
    check_gaps(start(of, tmp_path).succeed(), of.settings.get("run.num_steps", 4), gap)


@pytest.mark.usefixtures("_mooncake")
@each(PAIRS)
def test_prefill_and_decode_engines_that_share_gpus_with_trainers(of: GpuRun, tmp_path: Path) -> None:
    """KV caches pass between the GPUs; both roles give their memory back and take it again at every step."""
    steps = check_gaps(start(of, tmp_path).succeed(), of.settings.get("run.num_steps", 4), GAP)
    if "+rollout.sglang.speculative_algorithm" in of.settings:
        assert all(row["rollout/draft_accept_rate"] > 0.2 for row in steps)
