"""Engines of tests, forked from a process that has imported SGLang once for all of them.

Every process of tests has one such process, as soon as it needs one (`slime_sglang.engine.driver.forked`). A run may
have its engines forked from it, too (`of_a_run`), instead of from one of its own.
"""

from __future__ import annotations

import os
from functools import cache

from slime.config.schema import ClusterConfig, Device, Role
from slime.net import LOOPBACK_SETTINGS
from slime.topology.engines import EngineGroup
from slime.topology.environment import engine_environment
from slime_sglang.engine.driver.forked import ADDRESS, begin
from slime_sglang.engine.driver.process import EngineProcess


class ForkedEngine(EngineProcess):
    """An engine that is forked, where its environment is that of the import."""

    def environment(self, scratch: str) -> dict[str, str]:
        return super().environment(scratch) | {ADDRESS: serving()}


@cache
def serving() -> str:
    """The address of the process that has imported SGLang. It ends soon after this one."""
    of_engine = engine_environment(ClusterConfig(device=Device.cpu), EngineGroup("", Role.regular, 1, 1, {}, {}, 1))
    address, _ = begin({**LOOPBACK_SETTINGS, **os.environ, **of_engine}, follows=False)
    return address


def of_a_run() -> dict[str, str]:
    """Environment of a run on a CPU whose engines are to be forked from the process of these tests. Empty where CUDA
    is, which does not survive a fork."""
    import torch

    return {} if torch.cuda.device_count() else {ADDRESS: serving()}
