"""Writes core/slime/distributions.json: what each distribution of this repository brings, and what it needs.

    python upkeep/distributions.py

A command that lacks something names the distribution that has it. Core imports none of them: it reads this table.
"""

from __future__ import annotations

import dataclasses
import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from packaging.requirements import Requirement

from slime.compose.groups import scan
from slime.config.extended import SECTIONS
from slime.extras import DISTRIBUTION, TABLE
from slime.plugins import Plugin, load

ROOT = Path(__file__).resolve().parents[1]
NO_CHOICE = ("recipe",)
"""Groups of which nobody types an option without a model that has it."""
TYPED = {"slime-rewards": ("reward.parts", "reward.path")}
"""Keys that a command line understands only where a distribution is there, and no schema says so."""


def projects() -> dict[str, Path]:
    """Folder of every distribution beside core, by name."""
    files = sorted([*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("plugins/*/*/pyproject.toml")])
    return {_project(file.parent)["name"]: file.parent for file in files}


def table() -> dict[str, dict[str, Any]]:
    """A row for each distribution that brings something by a name or a key, as `slime.extras.Apart`."""
    ours, plugins, groups = projects(), load(), scan(load())
    found = {}
    for name, folder in ours.items():
        own = [plugin for plugin in plugins.installed if plugin.distribution == name]
        named = [f"{item.kind}/{item.name}" for plugin in own for item in plugin.contributions]
        chosen = [
            f"+{group}/{option}"
            for group, options in groups.of(name).items()
            if group not in NO_CHOICE
            for option in options
        ]
        brings = sorted({*named, *chosen, *keys(own), *TYPED.get(name, ())})
        if brings:
            needs = [str(ours[need].relative_to(ROOT)) for need in needed(name, ours)]
            found[name] = {"folder": str(folder.relative_to(ROOT)), "needs": needs, "brings": brings}
    return found


def keys(own: list[Plugin]) -> Iterator[str]:
    """Keys that these plugins add to sections of the config, with those inside of them."""
    for plugin in own:
        for name, schema in plugin.schemas.items():
            section, base = SECTIONS.get(name.partition("/")[0], ("", None))
            if base is not None:
                old = {field.name for field in dataclasses.fields(base)}
                new = [field for field in dataclasses.fields(schema) if field.name not in old]
                yield from (name for field in new for name in _names(f"{section}.{field.name}", field.type, schema))


def _names(key: str, kind: Any, schema: type) -> Iterator[str]:
    hint = get_type_hints(schema).get(key.rpartition(".")[2], kind)
    yield key
    if dataclasses.is_dataclass(hint):
        for field in dataclasses.fields(hint):
            yield f"{key}.{field.name}"


def needed(name: str, ours: Mapping[str, Path]) -> list[str]:
    """Distributions of this repository that one asks for, those that others of them ask for first."""
    found: dict[str, None] = {}
    for line in _project(ours[name]).get("dependencies", ()):
        need = Requirement(line)
        asked = [need.name] if need.name in ours else []
        if need.name == DISTRIBUTION and need.extras:
            extras = _project(ROOT)["optional-dependencies"]
            asked = [Requirement(each).name for extra in need.extras for each in extras[extra]]
        for each in asked:
            found |= dict.fromkeys([*needed(each, ours), each])
    return list(found)


def _project(folder: Path) -> dict[str, Any]:
    read: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return read


def to_text() -> str:
    return json.dumps(table(), indent=1, sort_keys=True) + "\n"


if __name__ == "__main__":
    TABLE.write_text(to_text(), encoding="utf-8")
