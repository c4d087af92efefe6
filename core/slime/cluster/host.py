"""The far end of a session of ssh: Ray on another host of the run, until standard input ends.

Standard input ends when the driver closes it or is gone, and when the session breaks. Nothing that was started here
outlives that: the reaper ends what is left of it, whatever becomes of this process.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Sequence
from typing import TypedDict

from slime.cluster.reaper import reaped

LOOK_S = 0.5
END_S = 5.0
"""Seconds that Ray gets to end its processes."""


class Order(TypedDict):
    """What the driver tells in one line of JSON; the token must stand in no argument, which everybody can read.

    Attributes:
        number: of the host's line in the hostfile, counted from 0.
        mark: of the run, in the names of everything temporary.
        environment: variables of Ray and of all that it starts, the token among them.
        arguments: of `ray`.
    """

    number: int
    mark: str
    environment: dict[str, str]
    arguments: Sequence[str]


def main() -> int:
    """Run Ray; returns its exit code, 0 if the driver ended it."""
    order: Order = json.loads(sys.stdin.readline())
    os.environ.update(order["environment"])
    with reaped(order["mark"]):
        command = [sys.executable, "-m", "ray.scripts.scripts", *order["arguments"]]
        ray = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        while ray.poll() is None:
            if select.select([sys.stdin], [], [], LOOK_S)[0]:
                ray.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):  # the reaper does not ask
                    ray.wait(END_S)
                return 0
        return ray.returncode or 1


if __name__ == "__main__":
    sys.exit(main())
