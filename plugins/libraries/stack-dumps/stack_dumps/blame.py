"""A line on who is to be looked at when processes that wait for each other do not go on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from stack_dumps.dumps import StackDump

MAX_NAMED = 3


class Waited(Protocol):
    """A process of which an answer is due; its text names it."""

    @property
    def host(self) -> str: ...

    @property
    def pid(self) -> int: ...


def suspects(seen: Sequence[StackDump], pending: Collection[Waited], within: str = "") -> str:
    """Processes that may be to blame: those silent to the signal, then those that owe an answer; empty: none. `within`
    is for `StackDump.standing`."""
    due = {(member.host, member.pid): member for member in pending}
    unseen = [f"{member} cannot be asked" for key, member in due.items() if key not in {(x.host, x.pid) for x in seen}]
    stands = [(each, f"{each.label} is {each.standing(within)}") for each in seen]
    silent = [f"{told} and writes no stack" for each, told in stands if each.name and not each.stack]
    late = [told for each, told in stands if each.stack and (each.host, each.pid) in due]
    told = [*unseen, *silent, *late]
    more = f" and {len(told) - MAX_NAMED} more" if len(told) > MAX_NAMED else ""
    return "; ".join(told[:MAX_NAMED]) + more


def apart(seen: Sequence[StackDump], group_of: Callable[[str], str]) -> str:
    """Places of the ranks of groups that do not all stand in one function: a reader can tell which wait and which hang.
    `group_of` gives the group of a process by its name; empty: none."""
    groups: dict[str, list[StackDump]] = defaultdict(list)
    for each in seen:
        if each.stack and (group := group_of(each.name)):
            groups[group].append(each)
    return "; ".join(
        f"the ranks of {group} stand apart: {_places(ranks)}"
        for group, ranks in groups.items()
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
