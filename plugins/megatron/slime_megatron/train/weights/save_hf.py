"""Writes Hugging Face tensors as a folder that transformers loads."""

from __future__ import annotations

import errno
import json
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from slime.checkpoints import CONVERTED
from slime.data.tokenizer_files import CONFIG, VOCABULARIES, read_object
from slime.errors import SlimeError
from slime.files import folder_aside
from slime.models.bridge import HfConfig
from slime.weights.causes import MODELOPT
from slime.weights.file_tensors import INDEX, SINGLE
from slime.weights.hf_files import HfFiles
from slime.weights.other_forms import ADAPTERS, MEGATRONS
from slime_megatron.train.weights.spellings import exported_config, older_tokenizer

SHARD_BYTES = 5 * 10**9
"""Largest safetensors file that `save_hf` writes, in bytes; one larger tensor gets a file of its own."""


def save_hf(
    tensors: Iterable[tuple[str, torch.Tensor]],
    source_folder: Path,
    destination: Path,
    hf: HfConfig | None = None,
    shard_bytes: int = SHARD_BYTES,
    copies: Mapping[str, str] = MappingProxyType({}),
    *,
    replace: bool = False,
) -> None:
    """Write a Hugging Face folder: safetensors, index, config.json, and tokenizer and generation files of the source.

    Everything is written to a folder aside, synced and renamed, so `destination` is whole or not there. A folder that
    is replaced stays until the new one is whole. Call it on rank 0 with the tensors of `export_hf`. Memory: one shard.

    Args:
        source_folder: the HF folder the run started from.
        destination: must not exist, unless it may be replaced.
        hf: the config.json of the model as built, if that differs from the source's (a layer cut).
        copies: tensors that are written a second time where the source has them twice, by the name of the copy.
        replace: a folder that is there already, as a whole.

    Raises:
        SlimeError: `destination` exists, or the disk is full.
    """
    if destination.exists() and not replace:
        raise SlimeError("the folder exists already", where=str(destination), todo="Choose another, or remove it.")
    with folder_aside(destination, replace=replace) as aside:
        writer = _Writer(aside, shard_bytes)
        for name, tensor in _with_copies(tensors, source_folder, copies):
            writer.add(name, tensor)
        writer.finish()
        copy_companions(source_folder, aside)
        if (card := destination / "README.md").is_file():  # which somebody may have edited
            shutil.copyfile(card, aside / card.name)
        config = hf or json.loads((source_folder / "config.json").read_text(encoding="utf-8"))
        write_json(aside / "config.json", exported_config(config, writer.dtype))
        for weights in aside.glob("*.safetensors"):
            shutil.copymode(aside / "config.json", weights)  # safetensors lets nobody but the owner read it


def _with_copies(
    tensors: Iterable[tuple[str, torch.Tensor]], source: Path, copies: Mapping[str, str]
) -> Iterator[tuple[str, torch.Tensor]]:
    wanted = set[str]()
    with suppress(SlimeError):  # what has become of the source during a run costs no export
        wanted |= copies.keys() & HfFiles(source).tensors.keys() if copies else set()
    for name, tensor in tensors:
        yield name, tensor
        yield from ((copy, tensor.clone()) for copy in sorted(wanted) if copies[copy] == name)


@dataclass
class _Writer:
    """Fills safetensors files one after another; `dtype` is that of the first tensor, the embeddings."""

    folder: Path
    shard_bytes: int
    dtype: str = ""
    shard: dict[str, torch.Tensor] = field(default_factory=dict)
    filled: int = 0
    total: int = 0
    shards: list[list[str]] = field(default_factory=list)

    def add(self, name: str, tensor: torch.Tensor) -> None:
        self.dtype = self.dtype or str(tensor.dtype).removeprefix("torch.")
        if self.shard and self.filled + tensor.nbytes > self.shard_bytes:
            self._flush()
        self.shard[name] = tensor.cpu()
        self.filled += tensor.nbytes
        self.total += tensor.nbytes

    def finish(self) -> None:
        """Write the last shard, give all their final names, and the index if there are several."""
        self._flush()
        count = len(self.shards)
        names = [f"model-{number + 1:05}-of-{count:05}.safetensors" for number in range(count)]
        names = [SINGLE] if count == 1 else names
        for number, name in enumerate(names):
            self._aside(number).rename(self.folder / name)
        if count > 1:
            weight_map = {tensor: name for name, shard in zip(names, self.shards, strict=True) for tensor in shard}
            write_json(self.folder / INDEX, {"metadata": {"total_size": self.total}, "weight_map": weight_map})

    def _flush(self) -> None:
        save_tensors(self.shard, self._aside(len(self.shards)))
        self.shards.append(list(self.shard))
        self.shard, self.filled = {}, 0

    def _aside(self, number: int) -> Path:
        return self.folder / f"shard-{number}"


def save_tensors(tensors: dict[str, torch.Tensor], file: Path) -> None:
    """Write one safetensors file. Raises OSError as the operating system refuses it."""
    try:
        save_file(tensors, file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise _os_error(error) from error


def _os_error(error: SafetensorError) -> OSError:
    """safetensors wraps the operating system's errors and leaves their number in the text."""
    number = re.search(r"os error (\d+)", str(error))
    return OSError(int(number[1]) if number else errno.EIO, str(error))


def copy_companions(source: Path, destination: Path) -> None:
    """Tokenizer, chat templates, generation and processor settings, model code and licence: the files beside weights
    and config.json, less those that would say that these weights are others. The tokenizer's is respelled where one
    version of transformers alone would read it."""
    for file in sorted(source.iterdir()):
        is_of_weights = file.name.endswith(".index.json") or file.name in _OF_OTHER_WEIGHTS
        is_companion = file.suffix in _COMPANIONS or any(file.match(pattern) for pattern in _NAMES)
        if file.is_file() and is_companion and not is_of_weights:
            shutil.copyfile(file, destination / file.name)
    said = read_object(source / CONFIG)
    if (older := older_tokenizer(said)) != said:
        write_json(destination / CONFIG, older)
    if (source / _TEMPLATES).is_dir():
        shutil.copytree(source / _TEMPLATES, destination / _TEMPLATES, ignore=shutil.ignore_patterns(".*"))


_COMPANIONS = {".json", ".jinja", ".txt", ".model", ".tiktoken", ".py"}
_NAMES = (*VOCABULARIES, "LICENSE*", "LICENCE*", "NOTICE*")
_TEMPLATES = "additional_chat_templates"
"""Folder of transformers', for templates beside the first."""
_OF_OTHER_WEIGHTS = {CONVERTED, MEGATRONS, *ADAPTERS, MODELOPT, "quantize_config.json", "quant_config.json"}
"""Engines would take the weights for packed, or transformers would load what an adapter was trained on."""


def write_json(path: Path, content: Mapping[str, object]) -> None:
    """As config.json is written by transformers: indented, keys sorted."""
    path.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
