"""Tells whether a source is still what a conversion began with."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slime.weights.hf_files import HfTensors


def identity_of(source: Path, files: HfTensors) -> dict[str, Any]:
    """JSON that changes when a file of the source does."""
    return stats(source, {tensor.file for tensor in files.tensors.values()} | {"config.json"})


def stats(source: Path, names: Iterable[str]) -> dict[str, Any]:
    """Size and time of files: JSON."""
    found = {name: (source / name).stat() for name in sorted(names)}
    return {
        "source": str(source.absolute()),
        "source_files": {name: [stat.st_size, stat.st_mtime_ns] for name, stat in found.items()},
    }
