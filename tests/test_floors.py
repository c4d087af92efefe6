"""What `make test` says of a room whose tests run too little of it."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.floors import CORE, FLOORS, NAME, noting, ran, shares, statements, under
from tests.test_house import BUDGETS

PROGRAM = '''
LATER = [
    1,
]
def outer(n):
    """Says."""
    total = 0
    def inner():
        nonlocal total
        total += 1
    for _ in range(n):
        inner()
    else:
        total += 10
    try:
        if n == 0:
            raise ValueError
        elif n == 1:
            total += 100
    except ValueError:
        total += (
            1000
        )
    finally:
        total += 10000
    match n:
        case 2:
            total += 100000
    return total
class Shape:
    def area(self): ...
'''
TESTS = {
    "test_plain.py": "def test_it():\n    assert printable('plain') == 'plain'\n",
    "test_line.py": "def test_it():\n    assert _name('\\n') == '\\n'\n",
}


def test_every_room_has_a_floor() -> None:
    assert FLOORS.keys() == BUDGETS.keys()
    assert all(0 < floor < 100 for floor in FLOORS.values())


def test_a_program_notes_its_lines_and_does_what_it_did() -> None:
    plain: dict[str, Any] = {}
    exec(compile(PROGRAM, "program", "exec"), plain)
    lines = bytearray(PROGRAM.count("\n") + 1)
    noted: dict[str, Any] = {NAME: lines}
    exec(compile(noting(ast.parse(PROGRAM)), "program", "exec"), noted)
    assert not any(lines), "of functions alone"
    assert noted["outer"].__doc__ == "Says."
    everything = statements(ast.parse(PROGRAM))
    missing = {0: {12, 18, 19, 10, 9, 28}, 1: {17, 21, 28}, 2: {17, 19, 21}}
    for n, without in missing.items():
        lines[:] = bytes(len(lines))
        assert noted["outer"](n) == plain["outer"](n)
        assert {line for line, has_run in enumerate(lines) if has_run} == everything - without
    assert noted["outer"].__code__.co_firstlineno == plain["outer"].__code__.co_firstlineno


def test_lines_of_every_process_of_tests_count(tmp_path: Path) -> None:
    for name, text in TESTS.items():
        (tmp_path / name).write_text(f"from slime.printable import _name, printable\n{text}")
    folder = tmp_path / "ran"
    folder.mkdir()
    (folder / "1.json").write_text('{"printable.py": [1, 2, 3]}')  # an earlier run's
    ours = ["-p", "tests.floors", f"--ran={folder}", "-n2", "--dist=loadfile"]
    words = [sys.executable, "-m", "pytest", *ours, f"--rootdir={tmp_path}", "-c", os.devnull, tmp_path]
    subprocess.run(words, cwd=CORE.parents[1], check=True)
    source, found = (CORE / "printable.py").read_text().splitlines(), ran(folder)
    assert [source[line - 1].strip() for line in sorted(found["printable.py"])] == [
        "if text.isprintable():",
        "return text",
        "if character in _KEPT:",
        "return character",
    ]
    of_rooms = shares(found)
    assert of_rooms.keys() == BUDGETS.keys()
    assert {room for room, share in of_rooms.items() if share} == {"."}, "no function of another room has run"


def test_a_room_under_its_floor_is_named() -> None:
    assert under({"algo": 90.0, "data": 89.9}, {"algo": 90, "data": 90}) == [
        "data: tests run 89.9 % of the statements of its functions, less than its floor of 90 %. "
        "Test what is new, or lower the floor in tests/floors.py and say why."
    ]
    assert under({"new": 99.0}, {}) != []
