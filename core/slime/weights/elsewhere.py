"""Which safetensors of a folder are its checkpoint, and what lies there that another reader would take. No torch.

What transformers reads is read. A folder from which SGLang or vLLM would take other weights is refused by both names:
transformers prefers a single file, the others an index, and without one all files.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from slime.errors import SlimeError
from slime.weights.file_tensors import INDEX, SINGLE, FileTensor, damaged, header, shards, weight_map
from slime.weights.other_forms import ADAPTERS, MEGATRONS, lacking, merged


def is_megatrons(folder: Path) -> bool:
    """Whether it is a checkpoint of Megatron-core's."""
    return (folder / MEGATRONS).is_file()


def has_weights(folder: Path) -> bool:
    """Whether there are safetensors, or an index of some."""
    return (folder / INDEX).is_file() or (folder / SINGLE).is_file()


def checkpoint_of(folder: Path) -> dict[str, set[str]]:
    """The files of the folder's checkpoint, each with the tensors that an index promises in it.

    Raises:
        SlimeError: there is no checkpoint, or there are two, or an adapter that changes it; or its index is torn.
    """
    if not has_weights(folder):
        raise lacking(folder)
    if file := next((name for name in ADAPTERS if (folder / name).is_file()), None):
        what = f"'{file}' lies beside the model: transformers loads that adapter with it, slime would train without"
        todo = f"Merge it: {merged(folder)}; or move it to another folder to train the model without it."
        raise SlimeError(what, where=str(folder), todo=todo)
    indexed = weight_map(folder / INDEX) if (folder / INDEX).is_file() else None
    if (folder / SINGLE).is_file():
        if indexed is None:
            _refuse_strays(folder)
        elif _is_whole_without(folder, indexed):
            return {SINGLE: set()}
    if indexed is None:
        return {SINGLE: set()}
    if not indexed:
        raise damaged("no valid index of safetensors (it names no tensor)", folder / INDEX)
    files: dict[str, set[str]] = {}
    for name, file in indexed.items():
        files.setdefault(file, set()).add(name)
    if missing := sorted(file for file in files if not (folder / file).exists()):
        raise _missing(folder, missing, files.keys())
    return dict(sorted(files.items()))


def _is_whole_without(folder: Path, indexed: Mapping[str, str]) -> bool:
    """Whether an index tells nothing of the single file, and no file is there of which it tells.

    Raises:
        SlimeError: other files, which are there, hold the same tensors.
    """
    beside = {name: file for name, file in indexed.items() if file != SINGLE and (folder / file).exists()}
    is_part = SINGLE in indexed.values()
    single: Mapping[str, FileTensor] = header(folder, SINGLE) if is_part and beside else {}
    if twice := sorted(name for name in beside if name in single or not is_part):
        raise _two(folder, f"'{beside[twice[0]]}' of {INDEX}")
    return not is_part


def _refuse_strays(folder: Path) -> None:
    """Refuse shards without an index whose tensors the single file has too."""
    single = None
    for shard in shards(folder):
        single = header(folder, SINGLE) if single is None else single
        if single.keys() & header(folder, shard).keys():
            raise _two(folder, f"'{shard}', for which there is no {INDEX}")


def _two(folder: Path, other: str) -> SlimeError:
    what = f"there are two checkpoints: '{SINGLE}', which transformers reads, and {other}, which engines read"
    todo = f"Remove what is not to be trained: the shards and {INDEX}, or {SINGLE}."
    return SlimeError(what, where=str(folder), todo=todo)


def _missing(folder: Path, missing: Sequence[str], named: Collection[str]) -> SlimeError:
    more = f" (and {len(missing) - 1} more files)" if len(missing) > 1 else ""
    what = f"'{missing[0]}'{more} is missing, which {INDEX} names"
    if strays := [shard for shard in shards(folder) if shard not in named]:
        todo = f"'{strays[0]}' is there and not in the index: fetch the shards and the index of one checkpoint."
        return SlimeError(what, where=str(folder), todo=todo)
    return damaged(what, folder)
