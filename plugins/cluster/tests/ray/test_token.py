"""The token by which Ray's processes know each other, also where no home can be written."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from slime_cluster.ray.starter import _token, make_token

NAMES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setenv(name, "")  # so that it is restored, whatever the code under test sets
        monkeypatch.delenv(name)


def test_a_home_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    make_token()
    file = tmp_path / ".ray/auth_token"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["auth_token"]
    first = _token()
    make_token()
    assert _token() == first == file.read_text()
    assert not {*NAMES} & os.environ.keys()


@pytest.mark.parametrize("home", ["/proc/nobody", "/proc", "/dev/null"])
def test_without_a_home_it_stands_in_the_environment(home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """/proc refuses new folders to everybody, root included."""
    monkeypatch.setenv("HOME", home)
    make_token()
    assert len(_token()) == 64
    assert os.environ["RAY_AUTH_TOKEN"] == _token()


def test_one_that_is_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "x" * 64)
    monkeypatch.setenv("HOME", "/nonexistent")
    make_token()
    assert _token() == "x" * 64
