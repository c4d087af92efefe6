"""What `make test` says of a room whose tests run too little of it."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

from tests.floors import FLOORS, ROOT, shares, under
from tests.test_house import BUDGETS


def test_every_room_has_a_floor() -> None:
    assert FLOORS.keys() == BUDGETS.keys()
    assert all(0 <= floor < 100 for floor in FLOORS.values())


def test_shares_are_of_the_lines_that_ran(tmp_path: Path) -> None:
    """As `make test` measures: every room is found, also one that no test imports."""
    data, program = tmp_path / "data", tmp_path / "program.py"
    program.write_text("from slime.net import new_key\nnew_key()\n")
    [words] = [line for line in (ROOT / "Makefile").read_text().splitlines() if line.startswith("MEASURED := ")]
    measured = shlex.split(words.partition(":=")[2].replace("$(CURDIR)", str(ROOT)))
    # Of the measurement that these tests may be part of: its folder would be gone with this one's end.
    others = {name: value for name, value in os.environ.items() if not name.startswith("SLIPCOVER_")}
    command = [sys.executable, "-m", "slipcover", *measured, "--json", f"--out={data}", str(program)]
    subprocess.run(command, check=True, env=others)
    found = shares(data)
    assert found.keys() == BUDGETS.keys()
    assert 0 < found["core/slime"] < 20, "one module of the top is imported"
    assert found["core/slime/plan"] == found["plugins/sglang/engine"] == 0
    low = {line.partition(":")[0] for line in under(found, dict.fromkeys(found, 1))}
    assert low == BUDGETS.keys() - {"core/slime"}


def test_a_room_at_its_floor_is_well() -> None:
    assert under({"algo": 90.0, "data": 89.9}, {"algo": 90, "data": 90}) == [
        "data: 89.9 % of its lines are run by tests, under its floor of 90 %. "
        "Test what is new, or lower the floor in tests/budgets.toml and say why."
    ]
    assert under({"new": 99.0}, {}) != []
