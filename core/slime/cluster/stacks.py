"""Where every process of a run stands when something gave no answer."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slime.cluster.placement import on_node, this_node
from slime.errors import Hang, NoAnswer, SlimeError
from stack_dumps.blame import apart, suspects
from stack_dumps.dumps import StackDump, look

if TYPE_CHECKING:
    from slime.cluster.watch import Member

REMOTE_S = 30.0
"""Seconds that the other hosts get to send their stacks."""
FILE = "hang.txt"
OWN = "/slime/"
"""In the path of a file of ours: where one stands in it says more than the line of torch below."""
_RANK = re.compile(r"(?P<engine>engine-\d+)(-node\d+)?-scheduler-")
"""In the name under which an engine's rank registers, on whichever host."""


def take(members: Sequence[Member], logs: Path, why: str) -> list[StackDump]:
    """What every process of the run stands in, on every host; written to `hang.txt` as well, under the line `why`.

    This host is asked without Ray, which may be what hangs."""
    pids: dict[str, list[int]] = {}
    for member in members:
        pids.setdefault(member.node, []).append(member.pid)
    here = this_node()
    seen = [*look([os.getpid(), *pids.pop(here, [])], logs), *_elsewhere(pids, logs)]
    seen = list({(each.host, each.pid): each for each in seen}.values())  # "hosts" of a test may be one
    with (logs / FILE).open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {why}\n\n")
        file.write("\n\n".join(map(str, seen)) + "\n\n\n")
    return seen


def late(members: Sequence[Member], logs: Path, pending: Sequence[Member], what: str, limit_s: float) -> Hang:
    """The error of calls that gave no answer in time, with every stack taken."""
    told = f"no answer within {limit_s:g} s while {what}"
    todo = f"{_where(logs)} Raise cluster.hang_timeout_s if it was only slow."
    seen = suspects(take(members, logs, told), pending, OWN)
    return Hang(f"{told}: {seen}", where=pending[0].name, todo=todo)


def hanging(members: Sequence[Member], logs: Path, error: NoAnswer) -> SlimeError:
    """The error with every stack taken. Those are named that give none, or else ranks that stand apart."""
    seen = take(members, logs, str(error))
    told = suspects(seen, [], OWN) or apart(seen, engine_of) or f"all {len(seen)} processes answer a signal"
    return SlimeError(f"{error.what}; {told}", where=error.where, todo=f"{_where(logs)} {error.todo}")


def _where(logs: Path) -> str:
    return f"The stacks of all processes are in {logs / FILE}."


def _elsewhere(pids: dict[str, list[int]], logs: Path) -> list[StackDump]:
    """Stacks by a task on each node (Ray's id) of `pids`; a host that does not answer is left out."""
    import ray

    asked = [ray.remote(look).options(**on_node(node)).remote(of_node, logs) for node, of_node in pids.items()]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=REMOTE_S) if asked else ([], [])
    return [each for answer in answered for each in _result(answer)]


def _result(answer: object) -> list[StackDump]:
    import ray

    try:
        found: list[StackDump] = ray.get(answer)
    except ray.exceptions.RayError:  # the host is gone
        return []
    return found


def engine_of(name: str) -> str:
    """The engine of a rank; empty: it is no rank of one."""
    rank = _RANK.match(name)
    return rank["engine"] if rank else ""
