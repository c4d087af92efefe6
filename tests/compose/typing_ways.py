"""A way out of a refused line, as a user types it."""

from __future__ import annotations


def typed(words: list[str], way: list[str]) -> list[str]:
    """The words with a way out behind them, in place of those that set the same keys."""
    keys = {word.partition("=")[0] for word in way}
    return [*(word for word in words if word.partition("=")[0] not in keys), *way]
