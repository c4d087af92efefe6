"""The laptop run on GPUs, shortened: nothing changes but the cluster."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from slime.net import reserved_port
from slime_plugin_ray.gpus import MIB, read_gpus
from slime_plugin_ray.starter import make_token
from tests.running import NO_CHECKPOINTS, SPREAD, Run, end_family

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

GAP = 0.02
"""Nats a token between engine and trainer in bf16; seen are 0.004."""

HERE = {"cluster.device_memory_mb": int(min(gpu.total for gpu in gpus) // MIB)} if (gpus := read_gpus()) else {}
"""The configs are those of H200s; the plans count on what is here."""
SMALL: dict[str, Any] = {
    **HERE,
    "rollout.sglang.mem_fraction_static": 0.3,
    "+rollout.sglang.cuda_graph_max_bs_decode": 32,
}
CLUSTERS: dict[str, tuple[int, str, dict[str, Any]]] = {
    "one": (1, "h200x1", {}),
    "two": (2, "h200x2", {}),
    "split": (2, "h200x2-split", {}),
    "tp2": (
        2,
        "h200x2",
        {"+train.megatron.tensor_model_parallel_size": 2, "+rollout.sglang.tp_size": 2},
    ),
    "pp2": (2, "h200x2", {"+train.megatron.pipeline_model_parallel_size": 2}),
    "cp2": (2, "h200x2", {"+train.megatron.context_parallel_size": 2}),
    "four": (4, "h200x4", {"+train.megatron.tensor_model_parallel_size": 2}),
}


UNTRAINED: dict[str, Any] = {
    "model.num_layers": 4,
    "sft.num_steps": 0,
    "sft.lr_warmup_steps": 0,
    "run.num_steps": 2,
    "rollout.prompts_per_step": 16,
    "rollout.sampling.max_response_tokens": 256,
    "algo.entropy_coef": 0.01,  # an untrained model earns nothing; this moves it
    "train.checkpoint.export_hf": "false",
    "rollout.sglang.mem_fraction_static": 0.2,
    "rollout.sglang.enable_memory_saver": "true",
    **NO_CHECKPOINTS,
}
"""The first layers of a model at its real sizes, with random weights; trainers and engines take turns."""


def check_gaps(run: Run, num_steps: int, gap: float) -> list[dict[str, Any]]:
    """Every step of the run that has ended, each of which had its publish and receipt."""
    steps = [row for row in run.rows("rl") if row.get("train/loss") is not None]
    logging.warning("nats a token: %s", [row["train/logprob_diff_mean"] for row in steps])  # pytest -rP shows it
    assert [row["step"] for row in steps] == [*range(1, num_steps + 1)]
    assert all(row["train/logprob_diff_mean"] < gap for row in steps)
    return steps


@pytest.mark.parametrize(
    ("cluster", "settings"),
    [pytest.param(*rest, marks=pytest.mark.gpu(need), id=name) for name, (need, *rest) in CLUSTERS.items()],
)
def test_run(cluster: str, settings: dict[str, Any], tmp_path: Path) -> None:
    run = Run(tmp_path, cluster=cluster, settings={**SMALL, **settings}, silence_s=300).start().succeed()
    steps = check_gaps(run, 4, GAP)
    assert all(row[f"memory/train_{name}"] > 0 for row in steps for name in ("gib", "host_gib"))
    planned = ["memory/train_planned_gib" in row for row in [*run.rows("sft"), *run.rows("rl")]]
    assert planned.count(True) == 1  # a session's first step
    assert "trainers held, GiB" in (run.path / "summary.txt").read_text()
    assert (run.path / "export/model.safetensors").exists()


DRAFTING: dict[str, Any] = {
    "sft.num_steps": 200,
    "sft.path": "pkg://slime_plugin_math/data/arithmetic-sft.jsonl",
    "sft.lr_warmup_steps": 20,
    "train.checkpoint.interval": 100,
    "+rollout.sglang.speculative_algorithm": "EAGLE",
    "+rollout.sglang.speculative_num_steps": 1,
    "+rollout.sglang.speculative_eagle_topk": 1,
    "+rollout.sglang.speculative_num_draft_tokens": 2,
}


@pytest.mark.gpu
def test_run_that_drafts(tmp_path: Path) -> None:
    """Engines draft with the model's own prediction layer, which every publish renews."""
    run = Run(tmp_path, model="glm4-moe-tiny", cluster="h200x1", settings={**SMALL, **DRAFTING}, silence_s=300)
    steps = [row for row in run.start().succeed().rows("rl") if row.get("train/loss") is not None]
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


@pytest.mark.parametrize(
    ("model", "each", "settings"),
    [
        pytest.param("glm4-tiny", 1, {}, marks=pytest.mark.gpu(2), id="tiny"),
        pytest.param("glm4-9b-trial", 2, UNTRAINED, marks=pytest.mark.gpu(4), id="glm4-9b"),
    ],
)
def test_an_engine_over_two_hosts(model: str, each: int, settings: dict[str, Any], tmp_path: Path) -> None:
    """Its processes have the GPUs of a host each; trainer ranks of the second host hand their weights to the
    tensor-parallel ranks there."""
    hosts = {
        "cluster.num_nodes": 2,
        "cluster.devices_per_node": each,
        "rollout.engines.default.devices_per_engine": 2 * each,
    }
    with tempfile.TemporaryDirectory(prefix="ray-") as folder, two_raylets(Path(folder), each) as address:
        settings = {**SMALL, **settings, **hosts, "cluster.ray_address": address}
        run = Run(tmp_path, model, f"h200x{2 * each}", settings, silence_s=300).start().succeed()
    check_gaps(run, settings.get("run.num_steps", 4), GAP)
    assert {path.name for path in (run.path / "logs").glob("engine-0*.log")} == {"engine-0.log", "engine-0-node1.log"}


FLASH: dict[str, Any] = {
    **UNTRAINED,
    "recipe": "none",
    "task": "arithmetic",
    "model.path": "pkg://slime_plugin_glm4/assets/GLM-4.7-Flash",
    "model.tokenizer": "pkg://slime_plugin_glm4/assets/glm4-moe-lite-tiny",
    "model.init": "random",
    "+train.megatron.expert_tensor_parallel_size": 1,
}
ROUTED_GAP = 0.05
"""Nats a token in bf16 with 64 experts, of which rounding chooses others: seen with one rank are 0.0115 to 0.021."""


def spread(ranks: int) -> dict[str, Any]:
    """Attention by data and experts, over so many ranks of one engine."""
    return SPREAD | {f"+rollout.sglang.{what}_size": ranks for what in ("tp", "dp", "ep")}


def flash(ranks: int) -> dict[str, Any]:
    """GLM-4.7-Flash on so many ranks of trainer and engine; each of the engine's has a second copy of an expert."""
    sizes = {"+train.megatron.expert_model_parallel_size": ranks, "+rollout.sglang.ep_num_redundant_experts": ranks}
    return FLASH | spread(ranks) | sizes


@pytest.mark.parametrize(
    ("model", "gpus", "settings", "gap"),
    [
        pytest.param("glm4-moe-tiny", 2, spread(2), GAP, marks=pytest.mark.gpu(2), id="grouped-query"),
        pytest.param("glm4.7-flash", 2, flash(2), ROUTED_GAP, marks=pytest.mark.gpu(2), id="latent-real-heads"),
        pytest.param("glm4.7-flash", 4, flash(4), ROUTED_GAP, marks=pytest.mark.gpu(4), id="latent-over-four"),
    ],
)
def test_run_with_attention_by_data_and_experts_over_ranks(
    model: str, gpus: int, settings: dict[str, Any], gap: float, tmp_path: Path
) -> None:
    """Ranks of an engine, colocated with as many of the trainer: each takes its shards from the trainer's rank."""
    run = Run(tmp_path, model, f"h200x{gpus}", {**SMALL, **settings}, silence_s=300).start().succeed()
    check_gaps(run, settings.get("run.num_steps", 4), gap)


PAIR: dict[str, Any] = {
    "+rollout.engines.prefill.role": "prefill",
    "+rollout.engines.prefill.devices": 1,
    "+rollout.engines.decode.role": "decode",
    "+rollout.sglang.disaggregation_transfer_backend": "mooncake_tcp",
}


@pytest.mark.usefixtures("_mooncake")
@pytest.mark.parametrize(
    ("model", "num_decode", "settings"),
    [
        pytest.param("glm4-tiny", 1, {}, marks=pytest.mark.gpu(2), id="tiny"),
        pytest.param("glm4-moe-tiny", 1, DRAFTING, marks=pytest.mark.gpu(2), id="drafts"),
        pytest.param("glm4-9b-trial", 3, UNTRAINED, marks=pytest.mark.gpu(4), id="glm4-9b"),
    ],
)
def test_prefill_and_decode_engines_that_share_gpus_with_trainers(
    model: str, num_decode: int, settings: dict[str, Any], tmp_path: Path
) -> None:
    """KV caches pass between the GPUs; both roles give their memory back and take it again at every step."""
    settings = {**SMALL, **PAIR, "+rollout.engines.decode.devices": num_decode, **settings}
    run = Run(tmp_path, model, f"h200x{1 + num_decode}", settings, silence_s=300).start().succeed()
    steps = check_gaps(run, settings.get("run.num_steps", 4), GAP)
    if "+rollout.sglang.speculative_algorithm" in settings:
        assert all(row["rollout/draft_accept_rate"] > 0.2 for row in steps)
