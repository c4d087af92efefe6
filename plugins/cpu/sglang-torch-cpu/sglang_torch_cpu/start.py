"""A faster start of a server on a CPU, for a program that does nothing else."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from typing import Any

from sglang_torch_cpu.model_modules import leave_out


def quick_start(fields: Mapping[str, Any]) -> None:
    """Let SGLang fork its workers, which then import nothing a second time, and import only the model that it serves.

    Call this before `sglang.srt.plugins.load_plugins`, with the fields of SGLang's `ServerArgs`, in a process without
    CUDA (which does not survive a fork) that has computed nothing yet (nor do threads of OpenMP).
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # SGLang sets "spawn" together with its environment; "fork" is set right after it.
    HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", _set_fork, HookType.AFTER)
    leave_out(fields)


def _set_fork(result: None, *arguments: Any) -> None:
    multiprocessing.set_start_method("fork", force=True)
