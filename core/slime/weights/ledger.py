"""The engine's half of the receipt, inside SGLang's scheduler processes (entry-point group `sglang.srt.plugins`)."""

from __future__ import annotations


def install() -> None:
    """SGLang calls this in each of its processes before it builds anything."""
