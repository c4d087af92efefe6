"""Writes tests/durations.toml: how long the tests of each file take, by the log of a session.

    make test-all                                     # or `make test`, on two cores that do nothing else
    python upkeep/durations.py .reports.jsonl [BUSY]  # BUSY: processes a core, 1.5 as three ran on two

What the log does not tell stays as it was, and rows of files that are gone are left out. `conftest.py` has long files
begin first, and `tests/test_durations.py` holds the sums below their limits.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "tests/durations.toml"
HEAD = """\
# Seconds of a core that the tests of a file take: those of `make test`, and those that `make test-all` runs beside
# them. Written by upkeep/durations.py.

[seconds]
"""

Rows = dict[str, tuple[float, float]]
"""Seconds by day and by night, by the path of a file."""


def measured(log: Iterable[str], busy: float) -> dict[str, tuple[float | None, float | None]]:
    """What a log tells of each file: set-up, call and teardown of its tests; None where none of a kind ran."""
    seconds: dict[str, dict[bool, float]] = defaultdict(dict)
    for told in map(json.loads, log):
        if "when" in told and "nodeid" in told:
            of_file, is_nightly = seconds[told["nodeid"].partition("::")[0]], "nightly" in told["keywords"]
            of_file[is_nightly] = of_file.get(is_nightly, 0.0) + told["duration"] / busy
    return {file: (kinds.get(False), kinds.get(True)) for file, kinds in seconds.items()}


def merged(rows: Mapping[str, Iterable[float]], found: Mapping[str, Iterable[float | None]]) -> Rows:
    """`rows` with what is found, of files that exist."""
    kept = {file: tuple(row) for file, row in rows.items()}
    for file, kinds in found.items():
        old = kept.get(file, (0.0, 0.0))
        kept[file] = tuple(before if now is None else round(now, 1) for before, now in zip(old, kinds, strict=True))
    return {file: (row[0], row[1]) for file, row in sorted(kept.items()) if (ROOT / file).exists()}


def to_text(rows: Rows) -> str:
    return HEAD + "".join(f'"{file}" = [{day:.1f}, {night:.1f}]\n' for file, (day, night) in rows.items())


def main() -> None:
    """Merge the log that is named into the table."""
    busy = float(sys.argv[2]) if sys.argv[2:] else 1.5
    rows = tomllib.loads(TABLE.read_text())["seconds"] if TABLE.exists() else {}
    with Path(sys.argv[1]).open() as log:
        TABLE.write_text(to_text(merged(rows, measured(log, busy))))


if __name__ == "__main__":
    main()
