"""`slime plan +model=... +cluster=...`: what would run where, and what is wrong."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slime import plugins
from slime.arguments import ArgumentParser
from slime.errors import EXIT_ERROR
from slime.printable import printable
from slime.verbs.train import warn

if TYPE_CHECKING:
    from slime.compose.compose import Composed


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Checks everything that can be known before a process starts: names, types and rules of every key, the first rows of the
data, the run directory, the layout, the memory of devices and hosts. Exit code 2 if something is wrong."""
    parser.add_keys()
    parser.add_argument("--all", action="store_true", help="show every process, key and argument, not one screen")
    parser.add_argument("--config", action="store_true", help="print the resolved config as YAML")
    parser.add_argument("--json", action="store_true", help="print the plan for programs (docs/plan.md)")


def run(args: Namespace) -> int:
    from slime.plan.document import document
    from slime.plan.report import report
    from slime.plan.screen import screen

    composed = examine_with_run_dir(args.keys)
    code = EXIT_ERROR if composed.problems else 0
    if args.json:
        print(json.dumps(document(composed, plugins.load()), indent=1))
        return code
    for problem in composed.problems:
        print(f"slime: {problem}", file=sys.stderr)
    warn(composed)
    for need in composed.needs:
        print(f"slime: before it can run: {need}", file=sys.stderr)
    sys.stderr.flush()
    if args.config:
        print(printable(composed.yaml) if sys.stdout.isatty() else composed.yaml, end="")
    elif not composed.problems:
        print(printable((report if args.all else screen)(composed, plugins.load())))
    return code


def examine_with_run_dir(keys: Sequence[str]) -> Composed:
    """Compose and check a run; a run directory that it cannot use is one of its needs."""
    from slime.compose.compose import examine
    from slime.run_dir import RunDir
    from slime.weights.transports import written_folders

    composed = examine(keys)
    if composed.problems or not composed.topology:
        return composed
    if obstacle := RunDir.obstacle(composed.cfg, written_folders(composed.topology)):
        composed.needs = [*composed.needs, obstacle]
    elif finished := RunDir.finished(composed.cfg):
        composed.warnings.append(finished)
    return composed
