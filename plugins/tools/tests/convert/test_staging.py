"""A conversion goes on where it stopped, ends in a folder that can be checked, and never mixes with another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slime.checkpoints import CONVERTED
from slime.digest import FileFacts, facts_of
from slime.errors import SlimeError
from slime_tools.convert.staging import Staging, check

IDENTITY = {"conversion": "copy", "source": "somewhere"}


class Writer:
    """Writes a file's name into it, and counts."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def __call__(self, path: Path) -> tuple[FileFacts, Any]:
        self.written.append(path.name)
        path.write_text(path.name)
        return facts_of(path), [len(self.written)]


def begun(destination: Path, names: list[str], **changes: str) -> Writer:
    """A conversion that ends, as if killed, when these files are written."""
    staging, writer = Staging(destination, IDENTITY | changes), Writer()
    staging.open()
    for name in names:
        staging.complete(name, writer)
    return writer


def test_whole_files_are_not_written_again(tmp_path: Path) -> None:
    assert begun(tmp_path / "out", ["a", "b"]).written == ["a", "b"]
    assert begun(tmp_path / "out", ["a", "b", "c"]).written == ["c"]


def test_what_was_kept_with_a_file_comes_back(tmp_path: Path) -> None:
    begun(tmp_path / "out", ["a", "b"])
    staging = Staging(tmp_path / "out", IDENTITY)
    staging.open()
    assert staging.complete("b", Writer()) == [2]


@pytest.mark.parametrize("content", ["x", "a longer one", None])
def test_file_that_changed_since_is_written_again(tmp_path: Path, content: str | None) -> None:
    begun(tmp_path / "out", ["a", "b"])
    torn = tmp_path / ".out.converting/files/a"
    torn.unlink() if content is None else torn.write_text(content)
    assert begun(tmp_path / "out", ["a", "b"]).written == ["a"]


def test_disk_that_returns_something_else_is_named(tmp_path: Path) -> None:
    staging = Staging(tmp_path / "out", IDENTITY)
    staging.open()

    def write(path: Path) -> tuple[FileFacts, Any]:
        path.write_text("as read")
        return {"bytes": 7, "crc32": "00000000"}, None

    with pytest.raises(SlimeError, match=r"files/a: reads back with CRC-32 \w{8}, written was 00000000"):
        staging.complete("a", write)


def test_another_conversion_is_refused(tmp_path: Path) -> None:
    begun(tmp_path / "out", ["a"])
    with pytest.raises(SlimeError, match="another source, format or slime was begun here"):
        begun(tmp_path / "out", ["a"], source="elsewhere")
    assert (tmp_path / ".out.converting/files/a").read_text() == "a"


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    first = Staging(tmp_path / "out", IDENTITY)
    first.open()
    with pytest.raises(SlimeError, match="another conversion writes here"):
        Staging(tmp_path / "out", IDENTITY).open()


def test_existing_destination_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SlimeError, match="exists already"):
        Staging(tmp_path, IDENTITY).open()


@pytest.fixture
def published(tmp_path: Path) -> Path:
    staging = Staging(tmp_path / "out", IDENTITY)
    staging.open()
    for name in ("a", "b"):
        staging.complete(name, Writer())
    (staging.files / "config.json").write_text("{}")
    staging.publish()
    return tmp_path / "out"


def test_published_folder_has_a_manifest_and_nothing_is_left_beside_it(published: Path) -> None:
    assert sorted(path.name for path in published.iterdir()) == ["a", "b", "config.json", CONVERTED]
    assert [path.name for path in published.parent.iterdir()] == ["out"]
    manifest = json.loads((published / CONVERTED).read_text())
    assert manifest["conversion"] == "copy"
    assert manifest["files"] == {name: facts_of(published / name) for name in ("a", "b", "config.json")}
    assert check(published, 2) == 3


def test_damage_after_the_conversion_is_found(published: Path) -> None:
    (published / "b").write_text("c")
    with pytest.raises(SlimeError, match=r"out/b: has 1 bytes, CRC-32 \w{8}; written were 1, 71beeff9"):
        check(published, 2)
    (published / "b").unlink()
    with pytest.raises(SlimeError, match="out/b: is missing"):
        check(published, 2)


def test_folder_without_manifest_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(SlimeError, match=f"there is no {CONVERTED}"):
        check(tmp_path, 1)
