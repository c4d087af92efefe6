"""Environment variables that slime sets for trainers and engines; what depends on the moment of start is not here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from slime.config.schema import ClusterConfig, Role
from slime.topology.engines import EngineGroup, in_words
from slime.topology.server_fields import DISPATCH_TOKENS, dispatch_tokens, uses_deepep

NEVER = 10**7
"""Seconds, or failures, where SGLang wants a limit."""
_OF_DEEPEP = {"NVSHMEM_DISABLE_NCCL": "1"}  # whoever loads deepep loads NVSHMEM, which would start an NCCL of its own


def trainer_environment(cluster: ClusterConfig, megatron: Mapping[str, Any]) -> dict[str, str]:
    """Variables of a trainer rank; the user's `cluster.environment` has the last word."""
    deepep = _OF_DEEPEP if trains_with_deepep(megatron) else {}
    sizes = [megatron.get(f"{kind}_parallel_size") or 1 for kind in ("tensor_model", "context")]
    if cluster.on_gpus and max(sizes) > 1:
        # Kernels run in the order of their launches: Megatron-core begins a collective before the product that it is to
        # overlap with. SGLang sets its own number in engines.
        deepep = {**deepep, "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    return {**deepep, **_of_device(cluster), **_network(cluster), **in_words(cluster.environment)}


def trains_with_deepep(megatron: Mapping[str, Any]) -> bool:
    """Whether DeepEP exchanges tokens of trainers' experts: Megatron-core's flexible dispatcher takes it."""
    return megatron.get("moe_token_dispatcher_type") == "flex"


def engine_environment(cluster: ClusterConfig, group: EngineGroup) -> dict[str, str]:
    """Variables of every process of an engine; the user's environments have the last word."""
    settings = {
        "SGLANG_RETURN_ORIGINAL_LOGPROB": "0",  # log-probs at the temperature of sampling
        # Who asks /health must not have it generate, while the engine's memory may be lent to the trainers.
        "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0",
        # With them a server whose scheduler has failed stands still for a minute before it ends; its log says enough.
        "SGLANG_PYSPY_DUMP_BEFORE_CRASH": "0",
        "SGLANG_CUDA_COREDUMP_BEFORE_CRASH": "0",
    }
    if uses_deepep(group.sglang):  # SGLang compares it with nothing; a batch beyond it dies inside deepep
        settings |= {DISPATCH_TOKENS: str(dispatch_tokens(group)), **_OF_DEEPEP}
    if group.role is not Role.regular:  # slime sees who died or hangs; SGLang would fail what only waits for room
        never = ("BOOTSTRAP_TIMEOUT", "WAITING_TIMEOUT", "HEARTBEAT_MAX_FAILURE")
        settings |= {f"SGLANG_DISAGGREGATION_{name}": str(NEVER) for name in never}
    if not cluster.on_gpus and group.devices_per_engine > 1:  # SGLang asks for NUMA nodes unless it is told the cores
        cores = [str(rank % (os.cpu_count() or 1)) for rank in range(group.devices_per_engine)]
        settings["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(cores)
    return {**settings, **_of_device(cluster), **_network(cluster), **group.environment}


def _of_device(cluster: ClusterConfig) -> dict[str, str]:
    if not cluster.on_gpus:
        # One thread a rank: more would fight over the cores. Compiling costs 16 s on CPU and saves nothing.
        return {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
    # As SGLang sets them for its own processes: NCCL wants them alike in a group that publishes to engines.
    return {"NCCL_CUMEM_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


def _network(cluster: ClusterConfig) -> dict[str, str]:
    interface = cluster.socket_interface
    names = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    return dict.fromkeys(names, interface) if interface else {}
