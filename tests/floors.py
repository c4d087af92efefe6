"""Compare the share of each room's lines that tests run with its floor in tests/budgets.toml.

    python -m slipcover --source core/slime,plugins --omit 'plugins/*/tests/*,plugins/models/*/tools/*' \\
        --json --out .lines.json -m pytest --report-log .reports.jsonl
    python tests/floors.py .lines.json .reports.jsonl

Exits with 1 where a room is under its floor. What runs in processes that tests start is not counted, as actors, engines
and ranks are. Where one of pytest-xdist's processes crashed, nothing is compared, as the lines that it ran are lost.
SlipCover writes its counting into the code itself; what traces every call takes fast tests twice their time on Python
3.11.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOORS: dict[str, int] = tomllib.loads((ROOT / "tests/budgets.toml").read_text())["floors"]


def room_of(file: Path) -> str:
    """`core/slime/<room>`, `plugins/<distribution>/<room>`, a library's or a family's own folder, or its parent."""
    match file.relative_to(ROOT).parts:
        case ("core", "slime", room, _, *_):
            return f"core/slime/{room}"
        case ("plugins", ("models" | "libraries" | "cpu") as kind, name, *_):
            return f"plugins/{kind}/{name}"
        case ("plugins", name, _, room, _, *_):
            return f"plugins/{name}/{room}"
        case (first, second, *_):
            return f"{first}/{second}"
    raise AssertionError(file)


def shares(measured: Path) -> dict[str, float]:
    """Percent of the lines of each room that are run, by the file that SlipCover has written."""
    ran, missed = Counter[str](), Counter[str]()
    for name, lines in json.loads(measured.read_text())["files"].items():
        room = room_of(Path(name).absolute())
        ran[room] += len(lines["executed_lines"])
        missed[room] += len(lines["missing_lines"])
    return {room: 100 * ran[room] / lines for room, lines in (ran + missed).items()}


def under(found: Mapping[str, float], floors: Mapping[str, int]) -> list[str]:
    """A line for each room that has less than its floor, or none."""
    return [
        f"{room}: {share:.1f} % of its lines are run by tests, under its floor of {floors.get(room, 100)} %. "
        "Test what is new, or lower the floor in tests/budgets.toml and say why."
        for room, share in sorted(found.items())
        if share < floors.get(room, 100)
    ]


def crashed(log: Path) -> list[str]:
    """Tests in which a process of pytest-xdist crashed, by the log of the session."""
    reports = map(json.loads, log.read_text().splitlines())
    return [report["nodeid"] for report in reports if report.get("when") == "???"]  # xdist's word, of no phase


def main() -> int:
    """Print what tests ran of each room."""
    if lost := crashed(Path(sys.argv[2])):
        print(f"no floors: the lines that a process ran are lost, as it crashed in {', '.join(lost)}")
        return 0
    found = shares(Path(sys.argv[1]))
    for room, share in sorted(found.items()):
        print(f"{room:38} {share:5.1f} %   floor {FLOORS.get(room, 100)} %")
    problems = under(found, FLOORS)
    print("\n".join(problems), file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
