"""The tables of `chaos_random.py`: what dies, what happens, and what it costs; and each feature's runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from chaos_parts import Table
from machine import conditions

VARIES = ("ahead",)
"""Kinds of which no two runs are the same (docs/asynchrony.md)."""
ENDS = (None, 0, 2, -9)
"""Exit codes: it goes on; it was done; a line says why; the driver itself was killed."""


def table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """What dies, how often, what became of it, in seconds."""
    head = [
        "what dies",
        "kills",
        "named",
        "the run goes on",
        "ends, and the same command goes on",
        "seconds lost, median",
        "most",
        "not as promised",
    ]
    kills = [row for row in rows if row["role"]]
    found = []
    for role in sorted({row["role"] for row in kills}):
        mine = [row for row in kills if row["role"] == role]
        if not mine:
            continue
        on = [row for row in mine if row["code"] in (None, 0)]
        seconds = [row["seconds"] for row in mine]
        faults = [fault for row in mine for fault in faults_of(row)]
        told = sum(bool(row["named"]) for row in mine)
        found.append(
            [
                role,
                str(len(mine)),
                str(told),
                str(len(on)),
                str(len(mine) - len(on)),
                f"{statistics.median(seconds):.1f}",
                f"{max(seconds):.1f}",
                "; ".join(sorted(set(faults))) or "-",
            ]
        )
    return [head, *found]


def features(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ["feature", "chains", "kills", "the same in the end", "strays", "litter"]
    found = []
    for kind in dict.fromkeys(row["feature"] for row in sorted(rows, key=lambda row: row["chain"])):
        mine = [row for row in rows if row["feature"] == kind]
        ends = {row["chain"]: row["end"] for row in mine}
        if not ends:
            continue
        same = sum(bool(end["same"]) for end in ends.values())
        strays, litter = (
            sum(len(row.get(what, [])) for row in [*mine, *ends.values()]) for what in ("strays", "litter")
        )
        promised = "as far as promised, " if kind in VARIES else ""
        found.append(
            [
                kind,
                str(len(ends)),
                str(sum(bool(row["role"]) for row in mine)),
                f"{promised}{same} of {len(ends)}",
                str(strays),
                str(litter),
            ]
        )
    return [head, *found]


def faults_of(row: Mapping[str, Any]) -> Iterator[str]:
    if row["code"] not in ENDS:
        yield f"exit {row['code']}"
    if row.get("strays"):
        yield "strays"
    if row.get("litter"):
        yield "litter"


def section(rows: Sequence[Mapping[str, Any]]) -> str:
    """Of the results: both tables, and whatever was not as promised, kill by kill."""
    kills, ends = [row for row in rows if row["role"]], {row["chain"]: row for row in rows}
    told = f"{len(kills)} kills in {len(ends)} chains, with the numbers {', '.join(map(str, sorted(ends)))} as seeds."
    lines = ["## random", "", f"    python benchmarks/chaos_random.py kills.jsonl --chains 0:{max(ends) + 1}", ""]
    lines += [f"{conditions()}. {told}", ""]
    for head, *body in (table(rows), features(rows)):
        lines += ["| " + " | ".join(row) + " |" for row in (head, ["---"] * len(head), *body)] + [""]
    return "\n".join(lines)
