"""The safetensors of a Hugging Face folder, read slice by slice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slime.errors import SlimeError
from slime.weights.elsewhere import checkpoint_of
from slime.weights.file_tensors import INDEX, FileTensor, damaged, header, naming_faults, same_bytes


@dataclass
class HfTensors:
    """The tensors that a checkpoint folder holds, or would hold: by its safetensors, or by its config.json alone."""

    folder: Path
    tensors: dict[str, FileTensor]


class HfFiles(HfTensors):
    """The tensors of a checkpoint folder; every file's header is read and checked when this is made.

    Raises:
        SlimeError: no checkpoint or two (`slime.weights.elsewhere`), a torn index, a missing or truncated file, or a
            tensor that the index promises in vain or that two files hold with other values.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, {})
        for file, names in checkpoint_of(folder).items():
            here = header(folder, file)
            if missing := sorted(names - here.keys()):
                what = f"'{file}' lacks '{missing[0]}', which {INDEX} promises ({len(missing)} in all)"
                raise damaged(what, folder)
            self._refuse_second(here)
            self.tensors |= here

    @contextmanager
    def open(self, file: str, framework: str = "pt") -> Iterator[Any]:
        """The open safetensors file, whose `get_slice(name)[rows]` reads those rows only."""
        with (
            naming_faults(self.folder, file, SafetensorError),
            safe_open(self.folder / file, framework=framework) as opened,
        ):
            yield opened

    def _refuse_second(self, here: Mapping[str, FileTensor]) -> None:
        """Refuse a tensor that two files hold with other values: which of them is read differs by reader."""
        for name in sorted(self.tensors.keys() & here.keys()):
            if not same_bytes(self.folder, self.tensors[name], here[name]):
                what = f"'{name}' is in '{self.tensors[name].file}' and, with other values, in '{here[name].file}'"
                todo = "These files are of two checkpoints: fetch all of one again, into an empty folder."
                raise SlimeError(what, where=str(self.folder), todo=todo)
