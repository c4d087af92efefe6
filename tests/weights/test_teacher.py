"""A resumed run finds the teacher's files as they were, or says which one is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from slime.checkpoints import examine
from slime.driver_state import dumps, loads
from slime.errors import SlimeError
from slime.weights.teacher import TeacherFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in {"config.json": "{}", "a.safetensors": "one", "b.safetensors": "two", "README.md": "old"}.items():
        (tmp_path / name).write_text(text)
    return tmp_path


def examined(folder: Path) -> TeacherFiles:
    files = TeacherFiles(str(folder))
    files.examine(examine)
    return files


def resumed(saved: TeacherFiles, folder: Path) -> None:
    files = TeacherFiles(str(folder))
    files.load_state_dict(loads(dumps(saved.state_dict())))
    files.examine(examine)


def test_the_same_files_are_found_again_also_elsewhere(folder: Path) -> None:
    saved = examined(folder)
    resumed(saved, folder)
    (folder / "README.md").write_text("new")
    resumed(saved, folder.rename(folder.with_name("moved")))


@pytest.mark.parametrize(
    ("name", "text"), [("b.safetensors", "toe"), ("config.json", "{ }"), ("c.safetensors", "three")]
)
def test_another_file_is_named(folder: Path, name: str, text: str) -> None:
    saved = examined(folder)
    (folder / name).write_text(text)
    with pytest.raises(SlimeError, match=f"algo.teacher.path={folder}: '{name}' is not the file") as error:
        resumed(saved, folder)
    assert "Put the old file back" in str(error.value)


def test_of_a_checkpoint_every_file_counts(folder: Path) -> None:
    (folder / "metadata.json").write_text("{}")
    (folder / "__0_0.distcp").write_text("shard")
    saved = examined(folder)
    resumed(saved, folder)
    (folder / "__0_0.distcp").unlink()
    with pytest.raises(SlimeError, match=r"'__0_0\.distcp' is not the file"):
        resumed(saved, folder)


def test_a_checkpoint_of_before_it_was_asked_compares_nothing(folder: Path) -> None:
    resumed(TeacherFiles("never asked"), folder)
