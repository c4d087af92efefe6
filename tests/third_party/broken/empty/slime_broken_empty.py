"""Contributes nothing: the hook is not marked."""

from typing import Any


def slime_rewards() -> Any:
    return {"empty": dict}
