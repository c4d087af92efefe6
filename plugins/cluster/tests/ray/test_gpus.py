"""GPUs as nvidia-smi lists them."""

from __future__ import annotations

from slime_cluster.ray.gpus import MIB, Gpu, parse_gpus, visible

SMI = """\
0, GPU-5f0c1b7e-0a3e-7d6b-2f47-0f5a4f3f2a11, 143771, 0, NVIDIA H200
1, GPU-8d2f9a10-95c0-1c11-6d6a-7a9be10c4b42, 143771, 66036, NVIDIA H200
"""
"""What `nvidia-smi --query-gpu=index,uuid,memory.total,memory.used,name --format=csv,noheader,nounits` prints."""


def test_gpus_are_those_that_the_run_may_use() -> None:
    first, second = gpus = parse_gpus(SMI)
    assert first == Gpu("0", "GPU-5f0c1b7e-0a3e-7d6b-2f47-0f5a4f3f2a11", 143771.0 * MIB, 0.0, "NVIDIA H200")
    assert visible(gpus, None) == visible(gpus, "") == gpus
    assert visible(gpus, "1,0") == [second, first]
    assert visible(gpus, "GPU-8d2f9a10") == [second]
    assert parse_gpus("No devices were found\n") == []
