"""Variables of trainers and engines."""

import os

from slime.compose.compose import examine
from slime.config.schema import ClusterConfig, Device, EngineGroupConfig, Role
from slime.topology.environment import trainer_environment
from slime.topology.topology import read_topology
from slime_testing.engines import cpu_config


def of_first_engine(cfg):
    return read_topology(cfg).engines[0].environment


def of_trainers(cfg):
    return read_topology(cfg).trainers[0].environment


def test_a_cpu_rank_has_a_core_and_a_thread(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    assert of_first_engine(cpu_config(tp_size=3))["SGLANG_CPU_OMP_THREADS_BIND"] == "0|1|0"
    assert "SGLANG_CPU_OMP_THREADS_BIND" not in of_first_engine(cpu_config())
    assert of_first_engine(cpu_config())["OMP_NUM_THREADS"] == of_trainers(cpu_config())["OMP_NUM_THREADS"] == "1"


def test_the_user_has_the_last_word_group_over_cluster():
    cfg = cpu_config()
    cfg.cluster.device = Device.cuda
    cfg.cluster.environment = {"NCCL_NVLS_ENABLE": 1, "NCCL_IB_TC": 160}
    cfg.rollout.engines["default"] = EngineGroupConfig(devices=1, environment={"NCCL_IB_TC": 96})
    assert of_trainers(cfg) == {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "1", "NCCL_IB_TC": "160"}
    engine = of_first_engine(cfg)
    assert (engine["NCCL_NVLS_ENABLE"], engine["NCCL_IB_TC"]) == ("1", "96")


def test_trainers_that_overlap_have_one_connection_to_the_device():
    """Megatron-core's layers count on the order of launches under tensor and context parallelism."""
    name = "CUDA_DEVICE_MAX_CONNECTIONS"
    on_gpus, on_cpu = ClusterConfig(device=Device.cuda), ClusterConfig()
    for size in ("tensor_model_parallel_size", "context_parallel_size"):
        assert trainer_environment(on_gpus, {size: 2})[name] == "1"
        assert name not in trainer_environment(on_gpus, {size: 1})
        assert name not in trainer_environment(on_cpu, {size: 2})
    assert name not in trainer_environment(on_gpus, {"pipeline_model_parallel_size": 2})
    on_gpus.environment = {name: 32}
    assert trainer_environment(on_gpus, {"tensor_model_parallel_size": 2})[name] == "32", "the user's own"


def test_a_request_may_wait_for_its_other_side_as_long_as_it_takes():
    """By SGLang's 300 s, prompts fail while decode engines are busy with long responses."""
    cfg = cpu_config()
    cfg.rollout.engines = {role.name: EngineGroupConfig(role=role, devices=1) for role in (Role.prefill, Role.decode)}
    for engine in read_topology(cfg).engines:
        variables = engine.environment
        for limit in ("BOOTSTRAP_TIMEOUT", "WAITING_TIMEOUT", "HEARTBEAT_MAX_FAILURE"):
            assert int(variables[f"SGLANG_DISAGGREGATION_{limit}"]) > 30 * 24 * 3600
    assert not any("DISAGGREGATION" in name for name in of_first_engine(cpu_config()))


def test_a_server_that_has_failed_ends_at_once():
    """By SGLang's defaults it first waits 65 s for dumps that nobody asked for."""
    variables = of_first_engine(cpu_config())
    assert {variables[f"SGLANG_{kind}_BEFORE_CRASH"] for kind in ("PYSPY_DUMP", "CUDA_COREDUMP")} == {"0"}


def test_who_loads_deepep_keeps_nccl_out_of_nvshmem():
    """Trainers of DeepSeek-R1 load it beside the engines; those of GLM-5.2 do not."""
    for words, trainers in (
        (["+model=deepseek-r1", "+cluster=h100x128"], "1"),
        (["+model=deepseek-r1", "+cluster=h100x128", "~train.megatron.moe_flex_dispatcher_backend"], "1"),
        (["+model=glm5.2", "+cluster=h100x256"], None),
    ):
        cfg = examine(words).cfg
        assert of_trainers(cfg).get("NVSHMEM_DISABLE_NCCL") == trainers
        assert {engine.environment["NVSHMEM_DISABLE_NCCL"] for engine in read_topology(cfg).engines} == {"1"}
    assert "NVSHMEM_DISABLE_NCCL" not in of_first_engine(cpu_config())


def test_one_interface_serves_every_library():
    cfg = cpu_config()
    cfg.cluster.socket_interface = "eth1"
    names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    for variables in (of_trainers(cfg), of_first_engine(cfg)):
        assert {variables[name] for name in names} == {"eth1"}
