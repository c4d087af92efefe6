"""A servant that does what it is asked, good or bad."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from guarded_workers.worker import Line


class Arithmetic:
    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        if options.get("refuses"):
            raise RefusalError
        time.sleep(options.get("takes_s", 0))
        if options.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        self.name = name

    def answer(self, message: tuple[str, Any], line: Line) -> Any:
        what, value = message
        if what == "double":
            return 2 * value
        if what == "sleep":
            time.sleep(value)
        if what == "fork":
            while True:
                os.fork()
        if what == "grow":
            return len(bytearray(value))
        if what == "leave":
            if not (child := os.fork()):
                time.sleep(600)
            return child
        if what == "ask":
            question = line.ask(value)
            [(number, answer)] = line.receive()
            assert number == question
            return answer
        raise ValueError(f"{self.name} knows no {what}")


class RefusalError(Exception):
    """In the words that a `StartError` has."""

    what, where, todo = "refuses", "options", "Let it not."
