"""`slime keys [PREFIX]`: what keys there are, with their type, default and meaning, from the schema."""

from __future__ import annotations

import json
import textwrap
from argparse import Namespace
from collections.abc import Iterator, Sequence

from slime import plugins
from slime.arguments import ArgumentParser
from slime.config.keys import FOREIGN, Key, own_keys
from slime.config.megatron_fields import ACCEPTED
from slime.config.passthrough import DISTRIBUTION, SOURCES, fields_of, meant, settable
from slime.errors import SlimeError, nearest
from slime.printable import printable

WIDTH, MARGIN = 100, 4
"""Columns."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Shows the keys of a run: type, default and meaning (docs/config.md has all of them)."
    parser.add_argument("prefix", nargs="?", help="a key, a section (rollout.sampling), or the last part of keys")
    parser.add_argument("--json", action="store_true", help="print the keys for programs")


def run(args: Namespace) -> None:
    """Raises SlimeError: there is no such key."""
    plugins.load()  # they add keys
    found = list(own_keys().values()) if args.prefix is None else under(args.prefix.strip(".").partition("=")[0])
    if args.json:
        print(json.dumps([as_json(key) for key in found], indent=1))
    else:
        print(printable("\n".join(overview(found) if args.prefix is None else shown(found))))


def under(prefix: str) -> Sequence[Key]:
    """The key of this name, those of a section, or those with this last part.

    Raises:
        SlimeError: there is none.
    """
    known = [*own_keys().values(), *foreign()]
    found = [key for key in known if f"{key.name}.".startswith(f"{prefix}.")]
    found = found or [key for key in known if key.name.endswith(f".{prefix}")]
    if not found:
        homes = {key.name.rpartition(".")[0] for key in known}
        near = nearest(prefix, {*homes, *(key.name for key in known), *(key.name.rpartition(".")[2] for key in known)})
        todo = meant(prefix) or (f"Did you mean '{near}'?" if near else "'slime keys' lists all.")
        raise SlimeError(f"there is no key '{prefix}'", todo=todo)
    return found


def foreign() -> Iterator[Key]:
    """Fields of Megatron-core's and SGLang's that a run may set."""
    for section in FOREIGN:
        fields, package = fields_of(section), DISTRIBUTION[SOURCES[section][0]]
        for name in sorted(settable(section)):
            accepted = ACCEPTED[section].get(name) if section in ACCEPTED else None
            doc = f"{accepted.effect}. Of {package}." if accepted else f"Of {package}."
            yield Key(f"{section}.{name}", fields[name].type, "", doc[0].upper() + doc[1:], is_open=False)


def overview(keys: Sequence[Key]) -> Iterator[str]:
    """The names, a paragraph a section."""
    sections: dict[str, list[str]] = {}
    for key in keys:
        section, _, last = key.name.rpartition(".")
        sections.setdefault(section, []).append(last)
    width = max(map(len, sections)) + 2
    for section, names in sections.items():
        yield textwrap.fill(
            ", ".join(names),
            WIDTH,
            initial_indent=section.ljust(width),
            subsequent_indent=" " * width,
            break_on_hyphens=False,
        )
    yield "\n'slime keys rollout.sampling' explains those of a section; 'slime keys temperature' finds keys by name."


def shown(keys: Sequence[Key]) -> Iterator[str]:
    """Each with its type and default, and below it what it means."""
    for key in keys:
        bound = f", {key.bound}" if key.bound else ""
        default = f"  (default: {key.default})" if key.default else ""
        yield f"{key.name}: {key.type}{bound}{default}"
        yield textwrap.indent(textwrap.fill(key.doc, WIDTH - MARGIN, break_on_hyphens=False), " " * MARGIN)


def as_json(key: Key) -> dict[str, str | None]:
    return {
        "name": key.name,
        "type": key.type,
        "default": key.default or None,
        "bound": str(key.bound) if key.bound else None,
        "meaning": key.doc,
    }
