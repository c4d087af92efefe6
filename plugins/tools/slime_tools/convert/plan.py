"""`slime plan convert ...`: what a conversion would read, write and take."""

from __future__ import annotations

from argparse import Namespace

from slime.arguments import ArgumentParser
from slime_tools.convert import command


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Say what a conversion would read and write, and what it would take of memory and of time."
    command.add_planned(parser.add_subparsers(required=True, metavar="conversion"))


def run(args: Namespace) -> None:
    args.plan = True
    command.run(args)
