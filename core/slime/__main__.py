"""`slime`, from its first moment to its last; `command.py` is what it does with a command line."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """`slime.command.main`. Before it and behind it an interrupt ends the process without a word: Python, which loads
    and unloads modules then, would print a stack."""
    is_ours = argv is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from slime import command  # takes a tenth of a second, and many times that on a busy machine

    if is_ours:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    code = command.main(argv)
    if is_ours:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return code


if __name__ == "__main__":
    sys.exit(main())
