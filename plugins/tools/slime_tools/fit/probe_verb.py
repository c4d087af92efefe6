"""`slime probe +model=... +cluster=...`: one step at full length, beside what the plan predicts."""

from __future__ import annotations

from argparse import Namespace

from slime.arguments import ArgumentParser
from slime.printable import printable


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Runs one step at full length on the real config, with random weights and no data, in a directory that is removed."""
    parser.add_keys()


def run(args: Namespace) -> None:
    from slime_tools.fit.probe import probe

    print(printable(probe(args.keys)))
