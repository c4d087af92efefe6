"""The safetensors of a Hugging Face folder, read slice by slice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from slime.errors import SlimeError
from slime.files import is_pointer, pointer
from slime.weights.elsewhere import checkpoint_of
from slime.weights.file_tensors import INDEX, FileTensor, damaged, header, same_bytes


@dataclass
class HfTensors:
    """What a checkpoint folder holds, or would hold: by its safetensors, or by its config.json alone."""

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
        self.tensors = self._headers(checkpoint_of(folder))

    @contextmanager
    def open(self, file: str, framework: str = "pt") -> Iterator[Any]:
        """The open safetensors file, whose `get_slice(name)[rows]` reads those rows only."""
        try:
            with safe_open(self.folder / file, framework=framework) as opened:
                yield opened
        except FileNotFoundError:
            raise damaged(f"'{file}' is missing", self.folder) from None
        except SafetensorError as error:
            if is_pointer(self.folder / file):
                raise pointer(self.folder / file) from None
            raise damaged(f"'{file}' is torn or no safetensors file ({error})", self.folder) from None
        except OSError as error:
            what = f"'{file}' cannot be read ({error.strerror or error})"
            raise SlimeError(what, where=str(self.folder), todo="Give this user the right to it.") from None

    def _headers(self, promised: Mapping[str, set[str]]) -> dict[str, FileTensor]:
        found: dict[str, FileTensor] = {}
        for file, names in promised.items():
            here = header(self.folder, file)
            if missing := sorted(names - here.keys()):
                what = f"'{file}' lacks '{missing[0]}', which {INDEX} promises ({len(missing)} in all)"
                raise damaged(what, self.folder)
            self._refuse_second(found, here)
            found |= here
        return found

    def _refuse_second(self, found: Mapping[str, FileTensor], here: Mapping[str, FileTensor]) -> None:
        """Refuse a tensor that two files hold with other values: which of them is read differs by reader."""
        for name in sorted(found.keys() & here.keys()):
            if not same_bytes(self.folder, found[name], here[name]):
                what = f"'{name}' is in '{found[name].file}' and, with other values, in '{here[name].file}'"
                todo = "These files are of two checkpoints: fetch all of one again, into an empty folder."
                raise SlimeError(what, where=str(self.folder), todo=todo)
