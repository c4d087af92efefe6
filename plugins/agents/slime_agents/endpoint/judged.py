"""What an agent says of its own attempt, in place of the run's reward."""

from __future__ import annotations

import re
from typing import Any

import orjson

from guarded_workers.wire import MALFORMED
from slime.reward.verdicts import MAX_PART, MAX_VALUE, verdict
from slime.types import Verdict, VerdictKind
from slime_agents.endpoint.said import RefusedRequestError

MAX_PARTS = 100
PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""Part of a metric's name: what trackers, files and terminals take unchanged."""


def judged(body: bytes) -> Verdict:
    """The verdict of `{"reward": 0.5, "parts": {"correct": 1}}`, where the parts may be missing.

    Raises:
        RefusedRequestError: the body is something else, or a number is too large.
    """
    try:
        read: Any = orjson.loads(body)
        if unknown := set(read) - {"reward", "parts"}:
            raise RefusedRequestError(f"'{min(unknown)}' is not known: 'reward' and 'parts' are", min(unknown))
        found = verdict(VerdictKind.VALUE, read["reward"], "", read.get("parts") or {})
    except MALFORMED:
        limits = f"numbers are at most {MAX_VALUE:g} in size, parts {MAX_PART:g}"
        what = 'a verdict is {"reward": NUMBER} or {"reward": NUMBER, "parts": {NAME: NUMBER}}'
        raise RefusedRequestError(f"{what}; {limits}", "reward") from None
    if len(found.parts) > MAX_PARTS or not all(map(PART.fullmatch, found.parts)):
        what = f"{MAX_PARTS} parts are allowed, with names of 1 to 100 of the letters a-z, A-Z, 0-9, _, - and ."
        raise RefusedRequestError(f"{what}, where - and . do not come first", "parts")
    return found
