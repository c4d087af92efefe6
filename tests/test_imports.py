"""Imports without collections of garbage, and of single files."""

from __future__ import annotations

import gc
import importlib.util
import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from slime.imports import absent, import_file, importing
from slime_testing.patience import run_within

FROZEN = """
import gc
from slime.imports import importing
before = gc.get_freeze_count()
with importing():
    assert not gc.isenabled()
    made = [[] for _ in range(1000)]
assert gc.isenabled()
assert gc.get_freeze_count() - before > len(made)
"""


def test_nothing_is_collected_on_the_way_and_what_was_made_is_not_walked_through_again() -> None:
    """In a process of its own: what one freezes stays so."""
    subprocess.run([sys.executable, "-c", FROZEN], check=True)


def test_an_import_that_fails_leaves_collections_on() -> None:
    with pytest.raises(ModuleNotFoundError), importing():
        import a_package_that_nobody_has  # type: ignore[import-not-found] # noqa: F401
    assert gc.isenabled()
    assert "a_package_that_nobody_has" not in sys.modules


def test_a_package_that_is_not_wanted_is_not_there() -> None:
    assert "tabnanny" not in sys.modules
    with absent("tabnanny"), absent("json"):
        assert importlib.util.find_spec("tabnanny") is None
        with pytest.raises(ModuleNotFoundError):
            import tabnanny
        assert json.dumps(1) == "1", "it is imported already"
    import tabnanny

    assert callable(tabnanny.check)


def test_collections_that_were_off_stay_off() -> None:
    gc.disable()
    try:
        with importing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_many_objects_that_live_are_looked_through_rarely() -> None:
    """In a process of its own, as it is told for good."""
    program = """
import gc
from slime.imports import collect_rarely
def passes():
    before = sum(each["collections"] for each in gc.get_stats())
    made = [[] for _ in range(30_000)]
    return sum(each["collections"] for each in gc.get_stats()) - before
assert passes() > 10
collect_rarely()
assert passes() <= 1
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_process_ends_in_silence() -> None:
    """Triton's library looks at its end for what nobody released."""
    program = "from slime.imports import importing\nwith importing():\n    import triton"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_file_is_run_at_every_import_and_what_it_defines_can_be_pickled(tmp_path: Path) -> None:
    file = tmp_path / "json.py"  # called as a module of Python is, which stays what it was
    file.write_text("class Thing: ...\n")
    first, second = (import_file(file, "slime_test_of_a_file") for _ in range(2))
    assert first.Thing is not second.Thing
    assert pickle.loads(pickle.dumps(second.Thing)) is second.Thing
    assert not hasattr(json, "Thing")


HELD = """
import os, signal, sys, threading
from pathlib import Path
from slime import imports
imports.HELD_S = {held}
try:
    imports.import_file(Path(sys.argv[1]), "mine")
except KeyboardInterrupt:
    print("interrupted", getattr(sys.modules["mine"], "is_whole", False))
"""


@pytest.mark.parametrize(
    ("rest", "held", "is_whole"),
    [
        ("", 100.0, True),
        ("os.kill(os.getpid(), signal.SIGINT)", 100.0, False),
        ("import time; time.sleep(100)", 0.1, False),
    ],
    ids=["to its end", "the second one", "no end"],
)
def test_an_import_is_not_cut_off_by_an_interrupt(tmp_path: Path, rest: str, held: float, is_whole: bool) -> None:
    file = tmp_path / "mine.py"
    file.write_text(f"import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n{rest}\nis_whole = True\n")
    program = [sys.executable, "-c", HELD.format(held=held), str(file)]
    done = run_within(50, program)
    assert done.stdout == f"interrupted {is_whole}\n"
