"""Writes to a file again and again, so that others see from it whether this process lives: `... heartbeat FILE`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

BEAT_S = 0.1
MOST_BEATS = 3000
"""In case nobody ends it."""
VARIABLE = "SLIME_HEARTBEAT"
"""What the file says: the value of this variable, and a count."""


def main() -> None:
    file = Path(sys.argv[1])
    for count in range(MOST_BEATS):
        file.write_text(f"{os.environ.get(VARIABLE, '')} {count}\n")
        time.sleep(BEAT_S)


if __name__ == "__main__":
    main()
