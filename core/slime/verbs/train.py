"""`slime [train] +model=... +cluster=...`: train, or continue a run."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import TYPE_CHECKING

from slime.arguments import ArgumentParser
from slime.imports import collect_rarely, importing
from slime.printable import printable

if TYPE_CHECKING:
    from slime.compose.compose import Composed


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Trains. If the run directory (run.dir/run.name) holds a checkpoint of the same run, training continues from the newest
one; of a finished run it says so. Ctrl-C stops it; the same command continues."""
    parser.add_keys()


def run(args: Namespace) -> None:
    from slime.compose.compose import examine, ready
    from slime.ending import hold_back
    from slime.run_dir import RunDir
    from slime.weights.transports import written_folders

    hold_back()
    composed = examine(args.keys)
    ready(composed)
    warn(composed)
    assert composed.topology, "its config has no problems"
    if obstacle := RunDir.obstacle(composed.cfg, written_folders(composed.topology)):  # before data and model are read
        raise obstacle
    if finished := RunDir.finished(composed.cfg):
        print(f"slime: {finished}")
        return
    with importing():
        from slime.run import train

    collect_rarely()
    train(composed)


def warn(composed: Composed) -> None:
    for note in composed.notes:
        print(printable(f"slime: note: {note}"), file=sys.stderr)
    for warning in composed.warnings:
        print(f"slime: warning: {warning}", file=sys.stderr)
