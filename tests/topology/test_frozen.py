"""Engine groups that have models of their own: where they stand, and what their engines are told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime.cluster.engines import devices_beside
from slime.cluster.placement import bundles, slots
from slime.config.schema import Device, EngineGroupConfig, Placement, Role, SlimeConfig
from slime.errors import SlimeError
from slime.topology.engines import with_sizes
from slime.topology.placement import SAVER, idle_devices, placement_problems
from slime.topology.topology import Topology, read_topology


def config(placement: str, trainers: int, device: str = "cuda", **judge: Any) -> SlimeConfig:
    """Two hosts of eight devices, engines of two, and a judge."""
    cfg = SlimeConfig()
    cluster = cfg.cluster
    cluster.name, cluster.device, cluster.placement = "it", Device(device), Placement(placement)
    cluster.num_nodes, cluster.devices_per_node, cluster.num_trainers = 2, 8, trainers
    cfg.model.path = "trained"
    cfg.rollout.sglang = {"tp_size": 2, "dtype": "bfloat16"}
    cfg.rollout.engines = {"judge": EngineGroupConfig(model="other", **judge)}
    return cfg


def places(topology: Topology) -> tuple[list[str], list[str]]:
    """Of the engines that sample, and of frozen ones."""
    every = [", ".join(map(str, nodes)) for nodes in topology.engine_places]
    num_sampling = len(topology.group_of_engine)
    return every[:num_sampling], every[num_sampling:]


def test_colocated_it_stands_behind_the_trainers_and_ray_gives_it_devices() -> None:
    topology = read_topology(config("colocated", 12, devices=4))
    sampling, frozen = places(topology)
    assert sampling[::5] == ["node 0 device 0-1", "node 1 device 2-3"]
    assert frozen == ["node 1 device 4-5", "node 1 device 6-7"]
    assert [*placement_problems(topology.cluster, topology.groups, topology.frozen)] == []
    assert [*idle_devices(topology.cluster, topology.places)] == []
    assert [slot.num_gpus for nodes in slots(topology)[1] for slot in nodes] == [0] * 6 + [2, 2]
    assert [bundle["GPU"] for bundle in bundles(topology)] == [8, 8]
    beside = devices_beside(topology, [str(rank) for rank in range(12)])
    assert beside[5:] == [[["10", "11"]], [[]], [[]]]


def test_disaggregated_the_others_get_what_it_leaves() -> None:
    topology = read_topology(config("disaggregated", 8, devices=4))
    assert [(group.name, group.devices) for group in (*topology.groups, *topology.frozen)] == [
        ("default", 4),
        ("judge", 4),
    ]
    assert places(topology) == (
        ["node 1 device 0-1", "node 1 device 2-3"],
        ["node 1 device 4-5", "node 1 device 6-7"],
    )
    with pytest.raises(SlimeError, match="leaves none of 16 devices to engines beside 4 of frozen engines"):
        read_topology(config("disaggregated", 12, devices=4))


def test_it_is_one_engine_unless_it_says_how_many_devices_it_has() -> None:
    cfg = config("disaggregated", 8, sglang={"tp_size": 4})
    (judge,) = read_topology(cfg).frozen
    assert (judge.devices, judge.devices_per_engine, judge.num_engines) == (4, 4, 1)
    topology = read_topology(cfg)
    sized = with_sizes(cfg.rollout.engines, (*topology.groups, *topology.frozen))
    assert {name: (group.devices, group.model) for name, group in sized.items()} == {
        "default": (4, None),
        "judge": (4, "other"),
    }


def test_on_cpu_it_takes_the_next_host() -> None:
    assert places(read_topology(config("disaggregated", 2, "cpu"))) == (["node 0"], ["node 1"])


def test_its_engines_load_their_own_model_and_get_nothing_from_trainers() -> None:
    topology = read_topology(config("colocated", 12, devices=4, sglang={"dtype": "float16"}))
    first, second = topology.frozen_engines
    assert [engine.index for engine in topology.every_engine] == [*range(8)]
    assert (first.name, second.name, first.index) == ("judge-0", "judge-1", 6)
    assert [*first.publishers] == []
    trained = topology.engines[0].fields
    assert (trained["load_format"], trained["skip_tokenizer_init"], trained[SAVER]) == ("dummy", True, True)
    assert (first.fields["load_format"], first.fields["skip_tokenizer_init"]) == ("auto", False)
    assert first.fields["model_path"].endswith("/other")
    assert trained["model_path"].endswith("/trained")
    assert (first.fields["dtype"], first.fields["tp_size"]) == ("float16", 2)
    assert SAVER not in first.fields, "it gives its memory to nobody"


@pytest.mark.parametrize(
    ("architecture", "trunk"),
    [
        ("Glm4ForSequenceClassification", "Glm4ForCausalLM"),
        ("Gemma3TextForSequenceClassification", "Gemma3ForCausalLM"),
        ("Qwen2ForRewardModel", "Qwen2ForRewardModel"),
    ],
)
def test_a_reward_models_engine_scores_with_the_layers_of_its_family(
    tmp_path: Path, architecture: str, trunk: str
) -> None:
    config_json = {"architectures": [architecture], "model_type": "any", "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(config_json))
    own = {"json_model_override_args": '{"rope_theta": 1}'}
    cfg = config("colocated", 12)
    for sglang, overrides in (({}, {}), (own, {"rope_theta": 1})):
        cfg.rollout.engines = {"rm": EngineGroupConfig(model=str(tmp_path), sglang=sglang)}
        (engine,) = read_topology(cfg).frozen_engines
        assert engine.fields["is_embedding"] is True
        assert json.loads(engine.fields["json_model_override_args"]) == {"architectures": [trunk], **overrides}


def test_it_works_in_no_pair() -> None:
    with pytest.raises(SlimeError, match=r"rollout.engines.judge.role: is decode, but .* do not work in pairs"):
        read_topology(config("colocated", 12, role=Role.decode))


def test_its_name_is_not_that_of_the_engines_beside_it() -> None:
    cfg = config("colocated", 12)
    cfg.rollout.engines = {"default": cfg.rollout.engines["judge"]}
    with pytest.raises(SlimeError, match=r"rollout.engines.default: is the name of a group that samples"):
        read_topology(cfg)


def test_devices_that_are_not_there_are_named() -> None:
    topology = read_topology(config("colocated", 14, devices=4))
    (problem,) = placement_problems(topology.cluster, topology.groups, topology.frozen)
    assert "needs 18 (one for each trainer rank, and 4 of frozen engines)" in str(problem)
