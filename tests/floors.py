"""Compare the share of each room's lines that tests run with its floor.

    python -m slipcover --source $PWD/core/slime --json --out .lines.json -m pytest --report-log .reports.jsonl
    python tests/floors.py .lines.json .reports.jsonl

Exits with 1 where a room of core is under its floor. What runs in processes that tests start is not counted, as actors,
engines and ranks are. Where one of pytest-xdist's processes crashed, nothing is compared, as the lines that it ran are
lost. SlipCover writes its counting into the code itself; what traces every call takes fast tests twice their time on
Python 3.11.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

CORE = Path(__file__).parents[1] / "core/slime"
FLOORS: dict[str, int] = {
    ".": 80,
    "algo": 95,
    "cluster": 49,
    "compose": 94,
    "config": 95,
    "data": 93,
    "engine_client": 93,
    "engines": 87,
    "models": 96,
    "observe": 94,
    "plan": 93,
    "reward": 89,
    "sampling": 95,
    "sizes": 96,
    "topology": 94,
    "train": 96,
    "verbs": 94,
    "weights": 67,
}
"""Percent of the lines of a room of core, `.` for the modules at its top: four under what the fast tests alone run, as
some machines skip a few. Lower one only by a commit that says why."""


def shares(measured: Path) -> dict[str, float]:
    """Percent of the lines of each room that are run, by the file that SlipCover has written."""
    ran, missed = Counter[str](), Counter[str]()
    for name, lines in json.loads(measured.read_text())["files"].items():
        [room, *inside] = Path(name).absolute().relative_to(CORE).parts
        ran[room if inside else "."] += len(lines["executed_lines"])
        missed[room if inside else "."] += len(lines["missing_lines"])
    return {room: 100 * ran[room] / lines for room, lines in (ran + missed).items()}


def under(found: Mapping[str, float], floors: Mapping[str, int]) -> list[str]:
    """A line for each room that has less than its floor, or none."""
    return [
        f"{room}: {share:.1f} % of its lines are run by tests, under its floor of {floors.get(room, 100)} %. "
        "Test what is new, or lower the floor in tests/floors.py and say why."
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
        print(f"{room:14} {share:5.1f} %   floor {FLOORS.get(room, 100)} %")
    problems = under(found, FLOORS)
    print("\n".join(problems), file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
