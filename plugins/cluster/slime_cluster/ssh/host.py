"""The far end of a session of ssh: Ray or torchrun on another host, until it or standard input ends.

Standard input ends when the driver closes it or is gone, and when the session breaks. The reaper ends what is left
then, whatever becomes of this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys

from slime.topology.launcher import Order
from slime_cluster.ray.reaper import reaped

LOOK_S = 0.5
END_S = 5.0
"""Seconds for it to end its processes."""


def main() -> int:
    """Run the module; returns its exit code, 0 if the driver ended it."""
    order: Order = json.loads(sys.stdin.readline())
    os.environ.update(order["environment"])
    with reaped(order["mark"]):
        command = [sys.executable, "-m", order["module"], *order["arguments"]]
        running = subprocess.Popen(command, stdin=subprocess.DEVNULL, cwd=order["folder"] or None)
        while running.poll() is None:
            if select.select([sys.stdin], [], [], LOOK_S)[0]:
                running.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):  # the reaper does not ask
                    running.wait(END_S)
                return 0
        return running.returncode


if __name__ == "__main__":
    sys.exit(main())
