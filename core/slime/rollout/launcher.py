"""`python -m slime.rollout.launcher ARGS`: one SGLang server that ends when its parent ends.

SGLang spawns its workers from the main module, so what this module does at import happens in all of them.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from slime import torchvision_ops

PARENT_POLL_S = 0.2


def die_with_parent() -> None:
    """Kill this process group as soon as the parent is gone, however it went.

    Polling the parent's id holds in every case: a pipe would stay open in forked siblings, and PR_SET_PDEATHSIG
    already fires when the *thread* that started us ends, which in a Ray actor or a thread pool is no death at all.
    """
    threading.Thread(target=_watch_parent, args=(os.getppid(),), daemon=True).start()


def _watch_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(PARENT_POLL_S)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    from sglang.srt.entrypoints.http_server import launch_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args

    load_plugins()
    launch_server(prepare_server_args(sys.argv[1:]))


if __name__ == "__main__":
    die_with_parent()
torchvision_ops.ensure()
if __name__ == "__main__":
    main()
