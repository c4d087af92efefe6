"""Workers of Ray that are forked from one process which has imported everything, so that many fit on a machine."""

from __future__ import annotations

import gc
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from slime import plugins
from slime.lifetime import end_with_parent
from slime_cluster.ray.starter import ENVIRONMENT

MIB = 2**20
RANK_BYTES = 2**31
"""A rank that wants more fails, before the machine does."""
FIRST_JOB = "01000000"
"""Ray's id of the first driver of a cluster."""
ASKED = "SLIME_BENCHMARK_WARM"
"""Where the process listens that workers are forked from."""


def prepare() -> None:
    """Ray looks at its environment when it is imported."""
    os.environ.update(ENVIRONMENT | {"RAY_RAYLET_PID": str(os.getpid())})


def warm(place: str) -> NoReturn:
    """With everything imported, fork whoever asks."""
    end_with_parent()
    prepare()
    os.environ["RAY_JOB_ID"] = FIRST_JOB  # what Ray has read when it is imported, a fork does not read again
    from ray._private.workers import default_worker  # noqa: F401

    import slime_megatron.train.trainer  # noqa: F401

    plugins.load()
    gc.collect()
    gc.freeze()  # a fork that collects garbage would copy the pages of everything
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(place)
        listener.listen(1024)
        while True:
            connection, _ = listener.accept()
            told, streams, _, _ = socket.recv_fds(connection, MIB, 2)
            if os.fork() == 0:
                listener.close()
                connection.close()
                become(json.loads(told), streams)
            connection.close()
            for stream in streams:
                os.close(stream)


def become(told: Mapping[str, Any], streams: Sequence[int]) -> NoReturn:
    """A worker of Ray, as its own command would have it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_DATA, (RANK_BYTES, RANK_BYTES))
    os.setsid()
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    os.environ.clear()
    os.environ |= told["environment"]
    os.chdir(told["folder"])
    sys.argv[:] = told["arguments"]
    runpy.run_path(sys.argv[0], run_name="__main__")
    os._exit(0)


def python(folder: Path) -> Path:
    """A Python for Ray, which has workers forked and runs all else itself."""
    spec = find_spec("ray")  # which is not imported yet
    assert spec
    assert spec.submodule_search_locations
    worker = Path(*spec.submodule_search_locations, "_private", "workers", "default_worker.py")
    ask = folder / "ask.py"
    ask.write_text(f"""\
import json, os, socket, sys
at = sys.argv.index({str(worker)!r})
told = dict(arguments=sys.argv[at:], environment=dict(os.environ), folder=os.getcwd())
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asked:
    asked.connect(os.environ[{ASKED!r}])
    socket.send_fds(asked, [json.dumps(told).encode()], [1, 2])
""")
    shim = folder / "python"
    shim.write_text(f"""\
#!/bin/sh
case "$*" in *{worker}*) exec {sys.executable} -S -E {ask} "$@";; esac
exec {sys.executable} "$@"
""")
    shim.chmod(0o755)
    return shim


@contextmanager
def forking(folder: Path) -> Iterator[int]:
    """Nodes of Ray that start inside have their workers forked; the id of the process that they come from."""
    place, before = folder / "warm", sys.executable
    prepare()
    process = subprocess.Popen([before, __file__, str(place)])
    os.environ[ASKED] = str(place)
    try:
        sys.executable = str(python(folder))
        while not place.exists():
            assert process.poll() is None, "it ends with this one"
            time.sleep(0.1)
        yield process.pid
    finally:
        sys.executable = before
        process.kill()
        process.wait()


if __name__ == "__main__":
    warm(sys.argv[1])
