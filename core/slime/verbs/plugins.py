"""`slime plugins`: what is installed and what each plugin brings, for people and for programs."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

from slime import plugins as installation
from slime.arguments import ArgumentParser
from slime.compose import groups
from slime.compose.groups import Groups
from slime.errors import EXIT_ERROR
from slime.plugins import Plugins
from slime.printable import printable

SCHEMA = 1
"""Version of the document: a field that changes its meaning or goes raises it; a new one does not."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = """\
Lists every plugin with its version and what it brings, the broken ones too. Exit code 2 if one is broken."""
    parser.add_argument("--json", action="store_true", help="print the list for programs")


def run(args: Namespace) -> int:
    installed = installation.load()
    print(printable((as_json if args.json else listing)(installed, groups.scan(installed))))
    for problem in installed.problems:
        print(f"slime: {problem}", file=sys.stderr)
    return EXIT_ERROR if installed.problems else 0


def listing(plugins: Plugins, options: Groups) -> str:
    """A paragraph a plugin; the broken ones are marked."""
    return "\n".join(_lines(plugins, options))


def _lines(plugins: Plugins, options: Groups) -> Iterator[str]:
    for plugin in plugins.installed:
        yield f"{plugin.distribution} {plugin.version} ({plugin.name}){'  BROKEN' if plugin.problem else ''}"
        for kind, names in plugin.brings().items():
            yield f"  {kind:<8} {', '.join(names)}"
        for group, names in options.of(plugin.distribution).items() if not plugin.problem else ():
            yield f"  choose   {' '.join(f'{group}={name}' for name in names)}"


def as_json(plugins: Plugins, options: Groups) -> str:
    """`{"schema", "plugins": [{"name", "distribution", "version", "brings", "choices", "problem"}]}`; docs/hooks.md."""
    found: list[dict[str, Any]] = [
        {
            "name": plugin.name,
            "distribution": plugin.distribution,
            "version": plugin.version,
            "brings": plugin.brings(),
            "choices": {} if plugin.problem else dict(options.of(plugin.distribution)),
            "problem": plugin.problem.document() if plugin.problem else None,
        }
        for plugin in plugins.installed
    ]
    return json.dumps({"schema": SCHEMA, "plugins": found}, indent=1)
