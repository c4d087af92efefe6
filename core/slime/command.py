"""`slime`: from the command line to a verb. The one place that prints errors.

Nothing heavy is imported before a run is known to be right, so that `--help`, `plugins` and `plan` answer at once.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial

import slime
from slime import extras
from slime.errors import SlimeError, Stopped
from slime.printable import PrintableFormatter, printable
from slime.verbs import installed
from slime.verbs.strangers import read

EXIT_INTERRUPTED, EXIT_PIPE = 130, 141  # as shells count death by SIGINT and SIGPIPE
AGAIN_S = 0.1


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; 0 if it went well, 2 after an error that is the user's, printed as a line, and 75 where a run was
    asked to stop."""
    if logging.lastResort:  # it prints warnings, ours and those of libraries
        logging.lastResort.setFormatter(PrintableFormatter())
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        with _no_interrupt_ignored(), _interrupts_noted() as interrupted:
            return _report_errors(list(sys.argv[1:] if argv is None else argv), interrupted)
    except BrokenPipeError:
        if not _reader_has_left():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still writes at its end
        return EXIT_PIPE


def _interrupt(number: int, frame: object) -> None:
    """SIGTERM ends as Ctrl-C does; a second one ends at once."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


@contextmanager
def _no_interrupt_ignored() -> Iterator[None]:
    """Context in which an interrupt that Python ignores, as after a fork and where an object is freed, comes again a
    moment later."""
    main_thread = threading.main_thread().ident or 0

    def again(ignored: sys.UnraisableHookArgs) -> None:
        if not issubclass(ignored.exc_type, KeyboardInterrupt):
            before(ignored)
            return
        timer = threading.Timer(AGAIN_S, signal.pthread_kill, [main_thread, signal.SIGINT])
        timer.daemon = True
        timer.start()

    before, sys.unraisablehook = sys.unraisablehook, again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _reader_has_left() -> bool:
    """Whether the reader of standard output is gone, as in `slime plan | head`: no other pipe may end so quietly."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in output.poll(0))


@contextmanager
def _interrupts_noted() -> Iterator[Callable[[], bool]]:
    """Yields whether an interrupt has come in the block. It may show as another error: of a library that it found half
    done, or of Python's C code, as while a library of C is loaded."""
    reader, writer = os.pipe()
    for end in (reader, writer):
        os.set_blocking(end, False)
    before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    os.register_at_fork(after_in_child=partial(signal.set_wakeup_fd, -1))  # which may be ended by the same signal

    def came() -> bool:
        with suppress(BlockingIOError):
            return not {signal.SIGINT, signal.SIGTERM}.isdisjoint(os.read(reader, 1 << 16))
        return False

    try:
        yield came
    finally:
        signal.set_wakeup_fd(before)
        os.close(reader)
        os.close(writer)


def _report_errors(argv: list[str], interrupted: Callable[[], bool]) -> int:
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt as interrupt:
        return _interrupted(getattr(interrupt, "__notes__", []))
    except BrokenPipeError:
        raise
    except Exception as error:
        if interrupted() and not isinstance(error, Stopped):
            return _interrupted([str(error) if isinstance(error, SlimeError) else repr(error)])
        if (line := _mistake(error)) is None:
            raise
        print(f"slime: {line}", file=sys.stderr)
        return line.code


def _mistake(error: Exception) -> SlimeError | None:
    """The error as a user can mend it; None for errors of ours."""
    if isinstance(error, ModuleNotFoundError):
        return extras.without(error.name or "")
    if isinstance(error, PermissionError) and error.filename:
        todo = "Give this user the right to it, or name another."
        return SlimeError("permission denied", where=os.fsdecode(error.filename), todo=todo)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = os.fsdecode(error.filename) if error.filename else "standard output, or a file of the run"
        return SlimeError("no space is left on the device", where=where, todo="Free some: 'df -h' says where.")
    return error if isinstance(error, SlimeError) else None


def _interrupted(notes: Sequence[str]) -> int:
    print(printable("; ".join(["slime: interrupted", *notes])), file=sys.stderr)
    return EXIT_INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if "--version" in argv:
        print(f"slime {slime.__version__}")
        return 0
    verb, words = installed.find(argv, installed.names())
    if verb is None and ({"--help", "-h"} & {*words} or not words):
        _help()
        return 0
    name = verb or "train"
    called = installed.load(name)
    try:
        args = read(installed.parser_of(name, called), words)
    except SystemExit as shown:  # argparse ends so where it has shown the help
        return int(shown.code or 0)
    return called.run(args) or 0


def _help() -> None:
    from slime import plugins
    from slime.compose import groups

    print(installed.overview())
    options = groups.scan(plugins.load())
    for group in groups.DECLARED:
        names = textwrap.wrap(", ".join(options.names(group)), 106, break_on_hyphens=False)
        print(f"  {group}=".ljust(12) + "\n".ljust(13).join(names))
