"""Megatron-core's and torch's complaints about a checkpoint, as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError

from megatron.core.dist_checkpointing.core import CheckpointingException
from torch.distributed.checkpoint.api import CheckpointException

from slime import files
from slime.errors import SlimeError

_NO_PICKLE = (UnpicklingError, AttributeError, EOFError, UnicodeDecodeError)
"""What bytes raise that are read as a pickle and are none."""
_SHORT_WRITE = "unexpected pos"
"""What torch's zip writer says when a file did not take all bytes; no OSError reaches us then."""


@contextmanager
def megatron_errors(path: Path, what: str) -> Iterator[None]:
    """Megatron-core's complaints about a checkpoint, or the disk's, as one line that names the folder."""
    try:
        with files.disk_errors(path), _first_failure():
            yield
    except (CheckpointingException, KeyError, RuntimeError, *_NO_PICKLE) as error:
        if _SHORT_WRITE in str(error):
            raise files.disk_full(path) from error
        reason = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SlimeError(
            f"the trainer's checkpoint {what}: {reason[:300]}", where=str(path), todo="See the trainer's log for more."
        ) from error


@contextmanager
def _first_failure() -> Iterator[None]:
    """torch collects what went wrong by rank in an exception of its own: raise the first of these instead."""
    try:
        yield
    except CheckpointException as error:
        failure, _ = next(iter(error.failures.values()))
        raise failure from error
