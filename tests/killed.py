"""Real kills at every statement of something that writes files."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from slime_testing.patience import run_within


def kill_at_every_line(
    folder: Path, traced: Sequence[ModuleType], before: Callable[[Path], None], work: Callable[[Path], None]
) -> None:
    """Do `work` in `folder/1`, `folder/2`, ... after `before`: child n is killed at the n-th line that `work` executes
    in a traced module. Says on stdout how many were killed."""
    files, line = {module.__file__ for module in traced}, 0
    while True:
        line += 1
        before(folder / str(line))
        child = os.fork()
        if child == 0:
            _kill_at(line, files)
            work(folder / str(line))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            break
        assert os.WIFSIGNALED(status), status
    sys.stdout.write(str(line - 1))


def _kill_at(line: int, files: set[str | None]) -> None:
    left = line

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)


def folders_of_killed(script: str, folder: Path) -> list[Path]:
    """What the children of `kill_at_every_line` left, by line; `script` calls it with its first argument.

    It is a process of its own, because a fork of a process with threads may hang.
    """
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    command = [sys.executable, "-c", script, str(folder)]
    parent = run_within(200, command, env=environment)
    return [folder / str(line) for line in range(1, int(parent.stdout) + 1)]
