"""`python -m slime.rollout.launcher FIELD=JSON ...`: one SGLang server that ends when its parent ends.

Its key comes through standard input.

SGLang spawns its workers from the main module, so what this module does at import happens in all of them.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from slime.net import take_key
from slime.rollout.lifeline import die_with_parent


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """`["port=30000", 'dtype="float32"']` -> fields of SGLang's `ServerArgs`."""
    return {name: json.loads(value) for name, _, value in (argument.partition("=") for argument in arguments)}


def fork_workers() -> None:
    """Let SGLang fork its workers where it would spawn them: they need not import everything a second time.

    Only without CUDA, which does not survive a fork. SGLang sets "spawn" with the rest of its environment, so this
    comes right behind it.
    """
    import multiprocessing

    import torch
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def set_fork(result: None, *arguments: Any) -> None:
        multiprocessing.set_start_method("fork", force=True)

    if not torch.cuda.is_available():
        HookRegistry.register("sglang.srt.entrypoints.engine._set_envs_and_config", set_fork, HookType.AFTER)


def main() -> None:
    import logging

    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s")
    fork_workers()
    load_plugins()
    launch_server(ServerArgs(**parse(sys.argv[1:]), api_key=take_key()))


if __name__ == "__main__":
    die_with_parent(os.environ.get("SLIME_ENGINE_SCRATCH", ""))
    main()
