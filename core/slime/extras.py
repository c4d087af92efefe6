"""Packages that an installation may lack: those for training alone, and other distributions of this repository."""

from __future__ import annotations

import functools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from slime.errors import SlimeError

DISTRIBUTION = "slime-rl"
EXTRAS = {"cuda": "gpu", "cpu": "cpu"}
"""By `cluster.device`: the extra that brings all. Its metadata lists what the other extras have, too."""
IN_A_CHECKOUT = {
    "cuda": "pip install --requirement requirements/gpu.txt, or 'make setup' for a CPU",
    "cpu": "'make setup'",
}
TABLE = Path(__file__).with_name("distributions.json")
"""Written by `python upkeep/distributions.py` from the metadata of this repository's distributions."""


class Apart(NamedTuple):
    """A distribution of this repository beside core."""

    folder: str  # in a checkout
    needs: Sequence[str]  # folders of others that it asks for, in the order in which pip may install them
    brings: Sequence[str]  # names, `<kind>/<name>`; options of config groups, `+<group>/<option>`; keys of the config


@functools.cache
def distributions() -> Mapping[str, Apart]:
    """The distributions of `TABLE`, by name."""
    return {name: Apart(**row) for name, row in json.loads(TABLE.read_text(encoding="utf-8")).items()}


def apart(kind: str) -> dict[str, str]:
    """Name -> the distribution of this repository that brings it, for everything of that kind."""
    names = {name: each for each, row in distributions().items() for name in row.brings}
    return {name.removeprefix(f"{kind}/"): names[name] for name in names if name.startswith(f"{kind}/")}


def brought_by(kind: str) -> str:
    """A distribution to install that brings something of a kind."""
    if kind == "model":
        return "the plugin of its family, slime-plugin-<family>,"
    known = Counter(apart(kind).values())
    return f"{known.most_common(1)[0][0]} or another plugin" if known else "a plugin"


def how_to_get(wanted: str) -> str:
    """A command that brings what is missing, by its word in `Apart.brings`; empty if no distribution brings it."""
    for distribution, row in distributions().items():
        if wanted in row.brings:
            folders = " ".join(f"./{each}" for each in (*row.needs, row.folder))
            return f"Run: pip install {distribution}. In a checkout: pip install {folders}, or 'make setup'."
    return ""


def install(device: str) -> str:
    """A command that brings all that `cluster.device` needs."""
    return f"Run: pip install '{DISTRIBUTION}[{EXTRAS[device]}]'. In a checkout: {IN_A_CHECKOUT[device]}."


def absent(device: str) -> list[str]:
    """Distributions that a run with this `cluster.device` needs and that are not installed."""
    return [name for name in dict.fromkeys(_asked(DISTRIBUTION, EXTRAS[device])) if not _is_installed(name)]


def without(module: str) -> SlimeError | None:
    """The error for a `module` that does not import; None if no extra that is absent brings it."""
    top = module.partition(".")[0].lower().replace("_", "-")
    for device in EXTRAS:
        brought = next((name for name in absent(device) if name.lower() == top or name.startswith(f"{top}-")), None)
        if brought:
            return SlimeError(f"this needs {brought}, which is not installed", todo=install(device))
    return None


def _asked(distribution: str, extra: str) -> Iterator[str]:
    """Requirements of an extra, and of the extras of this repository's distributions that it names."""
    for line in metadata.requires(distribution) or ():
        if re.search(rf"extra == ['\"]{extra}['\"]", line):
            asked = re.match(r"([\w.-]+)(?:\[([\w-]+)\])?", line)
            assert asked, "a requirement begins with a name"
            yield asked[1]
            if asked[2] and _is_installed(asked[1]):
                yield from _asked(asked[1], asked[2])


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True
