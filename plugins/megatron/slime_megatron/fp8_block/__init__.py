"""Engines in FP8 for slime: the quantization `fp8`, weights in E4M3 with a scale for each block of 128 x 128."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.config.gpus import ROW, gpu_of
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime.config.schema import ClusterConfig, RolloutConfig
    from slime.errors import SlimeError
    from slime.topology.quantization import Quantization


@hookimpl
def slime_quantizations() -> Mapping[str, Callable[[], Quantization]]:
    return {"fp8": _fp8}


@hookimpl
def slime_config_schemas() -> Mapping[str, type]:
    from slime_megatron.fp8_block.options import Fp8Rollout

    return {"quantization/fp8": Fp8Rollout}


@hookimpl
def slime_check(cluster: ClusterConfig, rollout: RolloutConfig) -> Sequence[SlimeError]:
    gpu = gpu_of(cluster)
    if gpu is None or getattr(rollout, "fp8", None) is None:
        return []
    from slime_megatron.fp8_block.config import gpu_problem

    problem = gpu_problem(cluster.gpu or ROW, gpu.capability)
    return [problem] if problem else []


def _fp8() -> Quantization:
    from slime_megatron.fp8_block.config import Fp8Blocks

    return Fp8Blocks()
