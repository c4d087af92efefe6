"""All that is known to go wrong with a reward, as samples for `tests.reward.misbehaving`: for tests, and to measure."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from slime.types import VerdictKind


@dataclass(frozen=True)
class Misdeed:
    """What a sample does, and the verdicts it may get for that; those of others must stay right in any case."""

    behaviour: str
    label: Any
    kinds: tuple[VerdictKind, ...]


_ERROR, _TIMEOUT, _VALUE = (VerdictKind.ERROR,), (VerdictKind.TIMEOUT,), (VerdictKind.VALUE,)
MISDEEDS = {
    "raise": Misdeed("fail", "no", _ERROR),
    "NaN": Misdeed("value", float("nan"), _ERROR),
    "os._exit": Misdeed("vanish", 1, _ERROR),
    "sys.exit": Misdeed("leave", 1, _ERROR),
    "segfault": Misdeed("segfault", None, _ERROR),
    "hang in sleep": Misdeed("sleep", 1000, _TIMEOUT),
    "hang in C, holding the GIL": Misdeed("hang_holding_the_gil", None, _TIMEOUT),
    "a value of 1e300": Misdeed("value", 1e300, _ERROR),
    "allocate 8 GB at once": Misdeed("grow", 8192, _ERROR),
    "allocate 8 GB bit by bit": Misdeed("grow_slowly", 8192, _ERROR + _TIMEOUT),
    "10 children of 400 MB": Misdeed("breed", [400] * 10, _ERROR + _TIMEOUT),
    "fork 255 processes": Misdeed("multiply", 8, _ERROR + _TIMEOUT),
    "leave 10 children and 10 daemons": Misdeed("leave_behind", 10, _VALUE),
    "fork, child returns": Misdeed("fork_and_return", None, _VALUE),
    "write 100 MB to stdout": Misdeed("write_much", 100, _VALUE + _TIMEOUT),
    "kill the guard": Misdeed("kill_guard", int(signal.SIGKILL), _ERROR + _VALUE),
    "stop the guard": Misdeed("kill_guard", int(signal.SIGSTOP), _VALUE + _TIMEOUT),
    "garbage to all descriptors": Misdeed("write_everywhere", b"\xff" * 4096, _ERROR),
    "answers to all descriptors": Misdeed("forge_answers", None, _ERROR),
    "its own answer, twice": Misdeed("forge_own_answer", "value", _VALUE),
    "its own answer, then a hang": Misdeed("forge_own_answer", "sleep", _VALUE),
    "its own answer, then a segfault": Misdeed("forge_own_answer", "segfault", _VALUE),
    "a pickle to all descriptors": Misdeed("forge_pickle", "loaded-a-pickle", _ERROR),
}
"""All that is known to go wrong, by what to call it in a table. (Two kinds: the first of two ends comes first.)"""
