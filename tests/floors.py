"""Compare the share of each room's statements that tests run with its floor.

    pytest --cov --cov-report= && python tests/floors.py

Exits with 1 where a room of core is under its floor. What runs in processes that tests start is not counted, as actors,
engines and ranks are.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from coverage import Coverage

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
"""Percent of a room of core, `.` for the modules at its top: four under what the fast tests alone run, as some machines
skip a few. Lower one only by a commit that says why."""


def shares(data: Path) -> dict[str, float]:
    """Percent of the statements of each room that are run, by the file that coverage has written."""
    coverage = Coverage(data_file=str(data))
    coverage.load()
    statements, missed = Counter[str](), Counter[str]()
    for file in CORE.rglob("*.py"):
        [room, *inside] = file.relative_to(CORE).parts
        _, found, _, missing, _ = coverage.analysis2(str(file))
        statements[room if inside else "."] += len(found)
        missed[room if inside else "."] += len(missing)
    return {room: 100 * (1 - missed[room] / total) for room, total in statements.items()}


def under(found: Mapping[str, float], floors: Mapping[str, int]) -> list[str]:
    """A line for each room that has less than its floor, or none."""
    return [
        f"{room}: {share:.1f} % of its statements are run by tests, under its floor of {floors.get(room, 100)} %. "
        "Test what is new, or lower the floor in tests/floors.py and say why."
        for room, share in sorted(found.items())
        if share < floors.get(room, 100)
    ]


def main() -> int:
    """Print what tests ran of each room."""
    found = shares(CORE.parents[1] / ".coverage")
    for room, share in sorted(found.items()):
        print(f"{room:14} {share:5.1f} %   floor {FLOORS.get(room, 100)} %")
    problems = under(found, FLOORS)
    print("\n".join(problems), file=sys.stderr)
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
