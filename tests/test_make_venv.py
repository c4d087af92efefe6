"""Which Python the set-up takes."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "requirements/make_venv.sh"
OLD = """#!/bin/sh
[ "$1" = -V ] && { echo Python 3.9.18; exit; }
exit 1
"""


@pytest.fixture
def bin_folder(tmp_path: Path) -> Path:
    """The only folder of commands, with a python3 that is too old."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "mv", "rm"):
        [found] = [path for path in (Path("/bin", name), Path("/usr/bin", name)) if path.exists()][:1]
        (folder / name).symlink_to(found)
    (folder / "python3").write_text(OLD)
    (folder / "python3").chmod(0o755)
    return folder


def make(bin_folder: Path, *python: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", SCRIPT, ".venv", *python]
    environment = {"PATH": str(bin_folder), "HOME": str(bin_folder.parent)}
    return subprocess.run(
        command, cwd=bin_folder.parent, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_python_that_fits_is_taken_whatever_python3_is(bin_folder: Path) -> None:
    (bin_folder / "python3.12").symlink_to(sys.executable)
    done = make(bin_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert (bin_folder.parent / ".venv/bin/pip").exists()
    assert not (bin_folder.parent / ".venv.uv").exists()


def test_without_any_one_line_says_what_to_install(bin_folder: Path) -> None:
    done = make(bin_folder)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert line.startswith(
        "slime: needs Python 3.11, 3.12 or 3.13 with venv (python3 here is Python 3.9.18), and uv could"
    )
    assert [path.name for path in bin_folder.parent.iterdir()] == ["bin"]


def test_the_python_that_is_named_must_fit(bin_folder: Path) -> None:
    done = make(bin_folder, "python3")
    assert done.returncode == 2
    told = "slime: python3 is no Python 3.11 to 3.13 with venv. Name another one (PYTHON=...), or none.\n"
    assert done.stderr == told
    assert make(bin_folder, sys.executable).returncode == 0


def test_uv_makes_one_where_none_fits(bin_folder: Path) -> None:
    """A uv that says what it is asked for, and makes nothing."""
    (bin_folder / "uv").write_text('#!/bin/sh\necho "$@" >&3\n')
    (bin_folder / "uv").chmod(0o755)
    asked = bin_folder.parent / "asked"
    done = subprocess.run(
        ["sh", "-c", f"exec 3> asked; exec sh {SCRIPT} .venv"],
        cwd=bin_folder.parent,
        env={"PATH": str(bin_folder)},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    folder = bin_folder.parent / ".venv"
    assert asked.read_text() == f"venv --quiet --clear --seed --python 3.11 {folder}\n"
