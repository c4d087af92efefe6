"""Where every process of a run stands when something gave no answer."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slime.cluster.placement import on_node, this_node
from slime.observe.hang import StackDump, look

if TYPE_CHECKING:
    from slime.cluster.watch import Member

REMOTE_S = 30.0
"""Seconds that the other hosts get to send their stacks."""
FILE = "hang.txt"
MAX_NAMED = 3
_RANK = re.compile(r"(?P<engine>engine-\d+)(-node\d+)?-scheduler-")
"""In the name under which an engine's rank registers, on whichever host."""


def take(members: Sequence[Member], logs: Path, why: str) -> list[StackDump]:
    """What every process of the run stands in, on every host; written to `hang.txt` as well, behind what is there.

    This host is asked without Ray, which may be what hangs.

    Args:
        why: first line in the file.
    """
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


def _elsewhere(pids: dict[str, list[int]], logs: Path) -> list[StackDump]:
    """By a task on each node (Ray's id) of `pids`; a host that does not answer is left out."""
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


def suspects(seen: Sequence[StackDump], pending: Collection[Member]) -> str:
    """Who may be to blame, in one line: first who did not answer the signal, then those of whom an answer is due."""
    due = {(member.host, member.pid): member for member in pending}
    unseen = [f"{member} cannot be asked" for key, member in due.items() if key not in {(x.host, x.pid) for x in seen}]
    silent = [f"{each.label} is {each.standing} and writes no stack" for each in seen if each.name and not each.stack]
    late = [f"{each.label} is {each.standing}" for each in seen if each.stack and (each.host, each.pid) in due]
    told = [*unseen, *silent, *late]
    more = f" and {len(told) - MAX_NAMED} more" if len(told) > MAX_NAMED else ""
    return "; ".join(told[:MAX_NAMED]) + more


def apart(seen: Sequence[StackDump]) -> str:
    """Where the ranks of an engine stand, in a line, if not all in one function; empty if they do, in every engine.

    One that waits for the others in a collective and one that hangs both answer a signal: a reader can tell which is
    which.
    """
    engines: dict[str, list[StackDump]] = defaultdict(list)
    for each in seen:
        if each.stack and (rank := _RANK.match(each.name)):
            engines[rank["engine"]].append(each)
    return "; ".join(
        f"the ranks of {engine} stand apart: {_places(ranks)}"
        for engine, ranks in engines.items()
        if len({each.innermost for each in ranks}) > 1
    )


def _places(ranks: Sequence[StackDump]) -> str:
    """One rank of each place; the rarest place first."""
    at: dict[str, list[StackDump]] = defaultdict(list)
    for each in ranks:
        at[each.innermost].append(each)
    rarest = sorted(at.items(), key=lambda item: len(item[1]))
    told = [
        f"{there[0].label}{f' and {len(there) - 1} more' if len(there) > 1 else ''} {place}" for place, there in rarest
    ]
    return ", ".join(told[:MAX_NAMED])
