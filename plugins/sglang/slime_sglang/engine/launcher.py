"""`python -m slime_sglang.engine.launcher FIELD=JSON ...`: one SGLang server that ends when its parent ends.

Its key comes through standard input. SGLang spawns its workers from the main module, so what this module does at import
happens in all of them; forked ones inherit it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import secrets
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Any

from slime.engines.scratch import ChildEnd, clear, how_ended
from slime.errors import SlimeError
from slime.extras import install
from slime.imports import importing
from slime.lifetime import end_group_with_parent
from slime.net import take_key
from slime_sglang.engine import early
from stack_dumps.dumps import register

OWN_END_S = 0.02
"""How long a server that ends itself may take between its children's end and its own."""
FAILED, SO_IT_ENDS = "the server failed:", "the server ends for this"
"""Lines around the stack of a server that failed: its schedulers write on into the same log until they are killed."""
FAILED_S = 0.2
"""How long a server that failed leaves to whoever says how its children ended, if that is why."""
ENGINE = "sglang.srt.entrypoints.engine.Engine"
CONTROLLER = "sglang.srt.managers.data_parallel_controller.DataParallelController"
"""Of SGLang: hands requests to the data-parallel ranks of an engine, in a process of its own."""


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """`["port=30000", 'dtype="float32"']` -> fields of SGLang's `ServerArgs`."""
    return {name: json.loads(value) for name, _, value in (argument.partition("=") for argument in arguments)}


def on_cpu() -> ModuleType | None:
    """What runs SGLang on a CPU; None where CUDA is.

    Raises:
        SlimeError: it is not installed.
    """
    import torch

    if torch.cuda.is_available():
        return None
    try:
        import sglang_torch_cpu
    except ModuleNotFoundError:
        what = "SGLang on a CPU needs sglang-torch-cpu, which is not installed"
        raise SlimeError(what, todo=install("cpu")) from None
    return sglang_torch_cpu


def skip_what_no_engine_needs() -> None:
    """Leave out two things that SGLang does in each process: it imports Megatron-core where that is installed, for its
    dumper of tensors, and for each hook on a method it looks through six thousand modules for the same under another
    name, as `from module import function` makes one."""
    from sglang.srt.plugins import hook_registry

    sys.modules["megatron"] = None  # type: ignore[assignment]  # to Python, a module that is not there
    everywhere = hook_registry._propagate_patch

    def propagate(original: object, wrapped: object, owner: object) -> Any:
        return 0 if isinstance(owner, type) else everywhere(original, wrapped, owner)

    hook_registry._propagate_patch = propagate


def hook() -> None:
    """Have the server and its schedulers tell their stacks when asked (`stack_dumps`), end when one of them is killed,
    name what they leave in /dev/shm after the engine's scratch folder (`scratch.clear`), and answer strangers on
    `/health` alone, and on `/metrics`, which there is with `enable_metrics`: Prometheus has no key."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    front = "sglang.srt.managers.tokenizer_control_mixin.TokenizerControlMixin"
    HookRegistry.register("sglang.srt.managers.scheduler.Scheduler.__init__", register_scheduler, HookType.BEFORE)
    HookRegistry.register(f"{ENGINE}._launch_scheduler_processes", watch, HookType.AFTER)
    HookRegistry.register(f"{ENGINE}._launch_detokenizer_subprocesses", watch_detokenizers, HookType.AFTER)
    HookRegistry.register(f"{CONTROLLER}.__init__", register_controller, HookType.BEFORE)
    HookRegistry.register(f"{CONTROLLER}.__init__", watch_controlled, HookType.AFTER)
    HookRegistry.register(f"{front}.flush_cache", flush_every_rank, HookType.REPLACE)
    HookRegistry.register("sglang.srt.utils.auth.decide_request_auth", ask_for_the_key, HookType.AROUND)
    if parse(sys.argv[1:]).get("node_rank"):
        HookRegistry.register("sglang.srt.utils.network.wait_port_available", port_of_the_first, HookType.REPLACE)
    HookRegistry.register("sglang.srt.utils.stale_shm_cleanup.make_shm_name", shm_name, HookType.REPLACE)
    HookRegistry.register("sglang.srt.managers.load_snapshot.shm_path_for", shm_path, HookType.REPLACE)


def register_scheduler(
    scheduler: Any,
    server_args: Any,
    port_args: Any,
    gpu_id: int,
    tp_rank: int,
    moe_ep_rank: int,
    pp_rank: int,
    attn_cp_rank: int,
    moe_dp_rank: int,
    dp_rank: int | None,
) -> None:
    """Before a scheduler is built, in its process."""
    ranks = {"pp": pp_rank, "dp": dp_rank or 0}
    named = "".join(f"-{kind}{rank}" for kind, rank in ranks.items() if rank)
    register_as(f"scheduler-tp{tp_rank}{named}")


def watch(started: tuple[Any, Sequence[BaseProcess]], *arguments: Any) -> None:
    """After a server has started its schedulers, or the process that starts them for data-parallel attention. SGLang
    looks after them on the first host only, once a second, and never after those of data-parallel attention: a rank of
    another host would fail first, in a collective, and be taken for the cause."""
    only_waits = multiprocessing.parent_process() or parse(sys.argv[1:]).get("node_rank")
    # A process that does nothing but wait for them must not end before it has said how they did.
    threading.Thread(target=end_with, args=(started[1],), daemon=not only_waits).start()


def watch_detokenizers(started: tuple[Sequence[BaseProcess], Any], *arguments: Any, **named: Any) -> None:
    """The same of those that turn tokens into text: SGLang looks after them once it is up, a second later each time."""
    watch((None, started[0]))


def watch_controlled(built: None, controller: Any, *arguments: Any) -> None:
    """The same in the process that has started the schedulers."""
    watch((None, controller.scheduler_procs))


def end_with(processes: Sequence[BaseProcess]) -> None:
    """End this process as soon as one of its children has ended, and say how: none of them does so by itself."""
    wait([process.sentinel for process in processes])
    now = time.time()
    time.sleep(OWN_END_S)
    for process in processes:
        if process.pid and process.exitcode is not None:
            sys.stderr.write(f"{ChildEnd(now, process.pid, how_ended(process.exitcode))}\n")
    os._exit(1)


def port_of_the_first(*arguments: Any) -> bool:
    """Instead of looking whether the ports are free on which only the first process listens: it may have taken them."""
    return True


def register_controller(controller: Any, *arguments: Any) -> None:
    """Before the process is built that hands requests to data-parallel ranks."""
    register_as("controller")


async def flush_every_rank(front: Any, timeout_s: float | None = None) -> Any:
    """Instead of SGLang's flush, which waits for all data-parallel ranks and tells what the first one says."""
    from sglang.srt.managers.io_struct import FlushCacheReqInput

    front.auto_create_handle_loop()
    answers = await front.flush_cache_communicator(FlushCacheReqInput(timeout_s=timeout_s))
    return next((answer for answer in answers if not answer.success), answers[0])


def ask_for_the_key(decide: Callable[..., Any], *, method: str, path: str, **asked: Any) -> Any:
    """Around SGLang's decision, which lets everybody ask whatever begins with `/health`: `/health_generate` works."""
    is_open = path in ("/health", "/metrics")
    return decide(method=method, path=path, **asked) if is_open else decide(method="GET", path="/", **asked)


def register_as(name: str) -> None:
    """Let this process tell its stacks, into a file beside the engine's log."""
    if stacks := os.environ.get("SLIME_ENGINE_STACKS"):
        register(Path(f"{stacks}-{name}.stack"))


def shm_name(kind: str) -> str:
    """Name of a segment of shared memory, instead of SGLang's."""
    return f"{Path(os.environ['SLIME_ENGINE_SCRATCH']).name}-{kind}-{secrets.token_hex(4)}"


def shm_path(instance: str) -> str:
    """Of the file through which schedulers tell their load, instead of SGLang's."""
    return f"/dev/shm/{Path(os.environ['SLIME_ENGINE_SCRATCH']).name}-loads-{instance}"


def import_server() -> None:
    """Everything that `launch` needs."""
    with importing():
        import sglang.srt.entrypoints.http_server
        import sglang.srt.plugins
        import sglang.srt.server_args  # noqa: F401


def launch() -> None:
    """Serve, as the process that the arguments and the environment describe, until it is killed."""
    import logging

    hook()
    register_as("server")
    end_group_with_parent(int(os.environ["SLIME_ENGINE_PARENT"]), partial(clear, os.environ["SLIME_ENGINE_SCRATCH"]))
    early.start(parse(sys.argv[1:]))
    import_server()
    from sglang.srt.entrypoints.http_server import app, launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType
    from sglang.srt.server_args import ServerArgs

    from slime_sglang.engine.routed import add_route, take_as_bytes

    logging.basicConfig(level=logging.INFO, format="[%(asctime)s] %(message)s")
    if cpu := on_cpu():  # the faster start that only a process without CUDA can have
        cpu.quick_start(parse(sys.argv[1:]))
    taking = "sglang.srt.managers.tokenizer_manager.TokenizerManager._handle_batch_output"
    HookRegistry.register(taking, take_as_bytes, HookType.AROUND)
    add_route(app)
    load_plugins()
    try:
        launch_server(ServerArgs(**parse(sys.argv[1:]), api_key=take_key()))
    except Exception:  # noqa: BLE001  (whatever it is ends this process)
        # In one piece, as lines of its schedulers may come between.
        os.write(sys.stderr.fileno(), f"{FAILED}\n{traceback.format_exc()}{SO_IT_ENDS}\n".encode())
        time.sleep(FAILED_S)
        os._exit(1)  # Python would wait for its children, which wait for requests


if __name__ in ("__main__", "__mp_main__"):
    skip_what_no_engine_needs()
if __name__ == "__mp_main__":
    hook()
if __name__ == "__main__":
    launch()
