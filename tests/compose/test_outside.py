"""Runs whose engines somebody else started: what is planned of them, and what they cannot be."""

from __future__ import annotations

import json

import pytest

from slime.__main__ import main
from slime.compose.compose import examine

WORDS = ["+model=glm4-tiny", "+cluster=local", "rollout.addresses=[http://10.0.0.7:30000,http://10.0.0.8:30000]"]


def test_the_plan_shows_servers_and_asks_for_no_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", *WORDS]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["outside_engines"] == ["http://10.0.0.7:30000", "http://10.0.0.8:30000"]
    assert plan["engines"] == []
    assert plan["transport"] == "disk"
    assert main(["plan", "--all", *WORDS]) == 0
    shown = capsys.readouterr().out
    assert "outside engine    2  SGLang, started by others, no device of the run, weights by disk" in shown
    assert "engines outside the run\n  http://10.0.0.7:30000\n  http://10.0.0.8:30000\n" in shown


def test_on_gpus_all_devices_may_train() -> None:
    words = ["+model=glm4-9b", "+cluster=h100x8", "cluster.placement=disaggregated", *WORDS[2:]]
    composed = examine(words)
    assert [problem for problem in composed.problems if "devices" in problem.what] == []
    assert [problem for problem in composed.problems if "sglang" in problem.where] == [], "the recipe sets sizes"
    assert composed.topology
    assert len(composed.topology.places) == composed.cfg.cluster.num_trainers == 8


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "where", "said"),
    [
        (["rollout.addresses=[host:1]"], "rollout.addresses", "'host:1' is neither an address nor a file"),
        (["cluster.placement=colocated"], "cluster.placement", "is colocated, but"),
        (["weights.transport=broadcast"], "weights.transport", "is broadcast, but"),
        (["+rollout.engines.own.devices=1"], "rollout.engines.own", "is a second place that samples"),
        (["+rollout.engines.one.role=prefill"], "rollout.engines.one", "is a second place that samples"),
        (["+rollout.sglang.speculative_algorithm=EAGLE"], "rollout.sglang.speculative_algorithm", "asks for drafts"),
        (["train.lora.rank=8", "train.lora.publish=adapters"], "train.lora", "publishes adapters beside the weights"),
        (["rollout.fp8=block"], "rollout.fp8", "is a form of weights"),
        (["+model=glm4-moe-tiny", "train.routing_replay=true"], "train.routing_replay", "asks for notes on tokens"),
        (["rollout.restarts=7"], "rollout.restarts", "does nothing with rollout.addresses"),
        (["rollout.sglang.tp_size=2"], "rollout.sglang.tp_size", "does nothing with rollout.addresses"),
    ],
)
def test_what_cannot_work_with_servers_of_others_is_refused_by_name(words: list[str], where: str, said: str) -> None:
    found = [problem.what for problem in examine([*WORDS, *words]).problems if problem.where == where]
    assert len(found) == 1
    assert found[0].startswith(said)


def test_frozen_engines_work_with_them() -> None:
    judge = "pkg://slime_plugin_qwen3/assets/qwen3-tiny"
    composed = examine([*WORDS, f"+rollout.engines.judge.model={judge}"])
    assert [problem.what for problem in composed.problems if "safetensors" not in problem.what] == []
