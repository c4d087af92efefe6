"""`slime preflight +model=... +cluster=...`: whether every host has what the run needs."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from slime.arguments import ArgumentParser
from slime.printable import printable


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Looks at every host: software, GPUs, memory, disk, run directory, model, clock. Exit code 2 if a host is not ready."""
    parser.add_keys()


def run(args: Namespace) -> None:
    from slime.compose.compose import examine, ready

    composed = examine(args.keys)
    cfg = ready(composed).cfg
    assert composed.topology, "the config has no problems"
    from slime.run_dir import RunDir
    from slime_tools.preflight.hosts import complaint, notes, preflight

    with RunDir.open(Path(cfg.run.dir) / cfg.run.name) as run:
        found = preflight(composed.topology, run)
    for host, seen in found.items():
        print(printable(f"{host:<20} {'not ready' if seen.faults else 'ready'}"))
        for name, value in seen.facts.items():
            print(printable(f"  {name:<20} {value}"))
    for note in notes(found):
        print(printable(note))
    if error := complaint(found):
        raise error
