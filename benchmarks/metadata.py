"""Make this checkout importable, plugins included, where nothing can be installed.

    export PYTHONPATH=$(python3 benchmarks/metadata.py FOLDER)

Writes to FOLDER what an installation would tell Python of slime and of each plugin here (names, versions, entry
points) and prints the search path: FOLDER and the sources.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def version_of(project: dict[str, Any], where: Path) -> str:
    if "version" in project["project"]:
        return str(project["project"]["version"])
    source = where / project["tool"]["hatch"]["version"]["path"]
    found = re.search(r'__version__ = "(.+)"', source.read_text(encoding="utf-8"))
    assert found, f"{source} states no version"
    return found[1]


def all_of(name: str, extra: str, optional: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What an extra asks for, and what those of its own distribution do that it names, as a build writes it."""
    for need in optional[extra]:
        if need.startswith(f"{name}["):
            for other in need.removeprefix(f"{name}[").rstrip("]").split(","):
                yield from all_of(name, other, optional)
        else:
            yield need


def only_for(extra: str, need: str) -> str:
    need, _, marker = need.partition(";")
    return f"{need.strip()} ; {f'({marker.strip()}) and ' if marker else ''}extra == '{extra}'"


def describe(pyproject: Path, folder: Path) -> None:
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))
    name, version = project["project"]["name"], version_of(project, pyproject.parent)
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    needs = [f"Requires-Dist: {need}\n" for need in project["project"].get("dependencies", [])]
    optional = project["project"].get("optional-dependencies", {})
    for extra in optional:
        asked = dict.fromkeys(all_of(name, extra, optional))
        needs += [f"Provides-Extra: {extra}\n", *(f"Requires-Dist: {only_for(extra, need)}\n" for need in asked)]
    head = f"Metadata-Version: 2.4\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(head + "".join(needs), encoding="utf-8")
    groups = project["project"].get("entry-points", {})
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in each.items()) for group, each in groups.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    plugins = sorted([*ROOT.glob("plugins/*/pyproject.toml"), *ROOT.glob("plugins/*/*/pyproject.toml")])
    for pyproject in (ROOT / "pyproject.toml", *plugins):
        describe(pyproject, folder)
    print(*[folder, ROOT / "core", *(pyproject.parent for pyproject in plugins)], sep=":")


if __name__ == "__main__":
    main()
