"""What `make test` says of a room whose tests run too little of it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.floors import CORE, FLOORS, shares, under
from tests.test_house import BUDGETS

ROOMS = {room.removeprefix("core/slime").lstrip("/") or "." for room in BUDGETS if room.startswith("core/slime")}


def test_every_room_has_a_floor() -> None:
    assert FLOORS.keys() == ROOMS
    assert all(0 < floor < 100 for floor in FLOORS.values())


def test_shares_are_of_the_lines_that_ran(tmp_path: Path) -> None:
    data, program = tmp_path / "data", tmp_path / "program.py"
    program.write_text("from slime.net import new_key\nnew_key()\n")
    words = [f"--source={CORE}", "--json", f"--out={data}", str(program)]
    # Of the measurement that these tests may be part of: its folder would be gone with this one's end.
    others = {name: value for name, value in os.environ.items() if not name.startswith("SLIPCOVER_")}
    subprocess.run([sys.executable, "-m", "slipcover", *words], check=True, env=others)
    found = shares(data)
    assert found.keys() == ROOMS
    assert 0 < found["."] < 20, "one module of the top is imported"
    assert found["plan"] == 0
    assert {line.partition(":")[0] for line in under(found, FLOORS)} == ROOMS


def test_a_room_at_its_floor_is_well() -> None:
    assert under({"algo": 90.0, "data": 89.9}, {"algo": 90, "data": 90}) == [
        "data: 89.9 % of its lines are run by tests, under its floor of 90 %. "
        "Test what is new, or lower the floor in tests/floors.py and say why."
    ]
    assert under({"new": 99.0}, {}) != []
