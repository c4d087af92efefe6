"""Groups of engines: sizes that are filled in, and those that contradict."""

import pytest

from slime.config.schema import Device, EngineGroupConfig, Placement, Role, SlimeConfig
from slime.errors import SlimeError
from slime.topology.engines import DEFAULT, role_problems, with_sizes
from slime.topology.topology import read_topology


def config(placement="colocated", device="cuda", trainers=8, **sglang):
    cfg = SlimeConfig()
    cluster = cfg.cluster
    cluster.device, cluster.placement, cluster.num_trainers = Device(device), Placement(placement), trainers
    cluster.num_nodes, cluster.devices_per_node = 2, 8
    cfg.rollout.sglang = sglang
    return cfg


@pytest.mark.parametrize(
    ("placement", "device", "tp_size", "devices"),
    [("colocated", "cuda", 2, 8), ("disaggregated", "cuda", 4, 8), ("disaggregated", "cpu", 3, 3)],
)
def test_the_only_group_has_what_there_is(placement, device, tp_size, devices):
    (group,) = read_topology(config(placement, device, tp_size=tp_size)).groups
    assert (group.name, group.role, group.devices, group.devices_per_engine) == (
        DEFAULT,
        Role.regular,
        devices,
        tp_size,
    )
    assert group.num_engines == devices // tp_size


def test_devices_per_engine_stands_for_tp_size_and_is_shown():
    cfg = config(pp_size=2)
    cfg.rollout.engines = {"a": EngineGroupConfig(devices=8, devices_per_engine=4), "b": EngineGroupConfig(devices=2)}
    assert [group.sglang["tp_size"] for group in read_topology(cfg).groups] == [2, 1]
    assert len(read_topology(cfg).engines) == 3
    sized = with_sizes(cfg.rollout.engines, read_topology(cfg).groups)
    assert {name: (group.devices, group.devices_per_engine) for name, group in sized.items()} == {
        "a": (8, 4),
        "b": (2, 2),
    }


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a": EngineGroupConfig(devices=3, devices_per_engine=2)}, "a.devices: 3 devices cannot .* Set it to 4 or 2"),
        ({"a": EngineGroupConfig(devices=1, devices_per_engine=2)}, "Set it to 2, or"),
        ({"a": EngineGroupConfig(devices=8), "b": EngineGroupConfig()}, "b.devices: is not set"),
    ],
)
def test_sizes_that_do_not_fit(groups, message):
    cfg = config()
    cfg.rollout.engines = groups
    with pytest.raises(SlimeError, match=message):
        read_topology(cfg)


def test_tp_size_that_contradicts():
    cfg = config(tp_size=2)
    cfg.rollout.engines = {"a": EngineGroupConfig(devices=8, devices_per_engine=4)}
    with pytest.raises(SlimeError, match="is 4, but tp_size 2 x pp_size 1 make 2"):
        read_topology(cfg)


@pytest.mark.parametrize(
    ("roles", "message"),
    [
        ([Role.prefill], "has prefill engines but none to decode"),
        ([Role.decode, Role.decode], "has decode engines but none to prefill"),
        ([Role.regular, Role.decode, Role.prefill], "mixes regular engines"),
        ([Role.prefill, Role.decode], ""),
    ],
)
def test_roles_that_need_each_other(roles, message):
    cfg = config()
    cfg.rollout.engines = {f"g{n}": EngineGroupConfig(role=role, devices=1) for n, role in enumerate(roles)}
    found = [problem.what for problem in role_problems(read_topology(cfg).groups)]
    assert found[0].startswith(message) if message else found == [], found
