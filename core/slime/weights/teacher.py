"""The files of a run's teacher. Checkpoints of the run do not hold its weights, so a resumed run must find the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slime.checkpoints import Examine
from slime.config.paths import resolve
from slime.digest import FileFacts
from slime.errors import SlimeError
from slime.weights.elsewhere import is_megatrons


class TeacherFiles:
    """A checkpoint's record of a teacher: the size and digest of each file that it is loaded from.

    Args:
        path: `algo.teacher.path`.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._facts: dict[str, FileFacts] = {}

    def examine(self, examine: Examine) -> None:
        """Read all that weights and architecture are read from.

        Raises:
            SlimeError: they are not those of the checkpoint that the run continues from.
        """
        folder = resolve(self._path)
        files = [folder / "config.json", *sorted(folder.glob("*.safetensors"))]
        if is_megatrons(folder):
            files = sorted(file for file in folder.iterdir() if file.is_file())
        found = {file.name: facts for file, facts in zip(files, examine(files), strict=True)}
        if self._facts and found != self._facts:
            names = sorted({*found, *self._facts})
            other = next(name for name in names if found.get(name) != self._facts.get(name))
            todo = "Put the old file back to resume, or start a new run with another run.name."
            what = f"'{other}' is not the file that the run's checkpoint was taken with"
            raise SlimeError(what, where=f"algo.teacher.path={self._path}", todo=todo)
        self._facts = found

    def state_dict(self) -> dict[str, Any]:
        return {"files": {name: dict(facts) for name, facts in self._facts.items()}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._facts = dict(state["files"])
