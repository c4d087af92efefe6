"""The files of a tokenizer, looked at before anything starts: a run loads them once Ray is up."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from slime.config.hf_fields import are_token_ids
from slime.errors import SlimeError
from slime.files import is_pointer, pointer, read_small

GENERIC = "tokenizer.json"
VOCABULARIES = (GENERIC, "*.model", "*.tiktoken", "vocab*", "merges.txt", "tekken.json", "*.bpe*")
"""Patterns of files, of which a folder with a tokenizer of any of transformers' classes has one."""
CONFIG = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
READ_AS_JSON = (CONFIG, "generation_config.json")
AGAIN = "Fetch the file again."


def tokenizer_problems(folder: Path) -> Iterator[SlimeError]:
    """Files that are missing or torn. Nothing is said of what only transformers understands."""
    if not any(any(folder.glob(pattern)) for pattern in VOCABULARIES):
        todo = f"Put the model's {GENERIC} and {CONFIG} into the folder."
        what = f"there is no tokenizer: neither {GENERIC} nor another vocabulary"
        yield SlimeError(what, where=str(folder), todo=todo)
        return
    for file in [folder / name for name in (GENERIC, *READ_AS_JSON, TEMPLATE)]:
        if file.exists() and not file.is_file():
            yield SlimeError("it is no file", where=str(file), todo=AGAIN)
            return
        if file.is_file() and is_pointer(file):
            yield pointer(file)
            return
    if (folder / GENERIC).is_file() and not _ends(folder / GENERIC):
        yield SlimeError("is torn: it does not end as JSON does", where=str(folder / GENERIC), todo=AGAIN)
    read = {}
    for name in READ_AS_JSON:
        if (folder / name).is_file():
            try:
                read[name] = _object(folder / name)
            except (OSError, ValueError, RecursionError) as error:
                yield SlimeError(f"cannot be read ({error})", where=str(folder / name), todo=AGAIN)
                return
    ends = read.get("generation_config.json", {}).get("eos_token_id")
    if not are_token_ids(ends):
        what = f"'eos_token_id' must be a token id or a list of them, got {json.dumps(ends)[:40]}"
        yield SlimeError(what, where=str(folder / "generation_config.json"), todo=AGAIN)
    if not (read.get(CONFIG, {}).get("chat_template") or any(folder.glob("chat_template*"))):
        yield no_chat_template(folder)


def no_chat_template(folder: Path | str) -> SlimeError:
    """The one line about a tokenizer that cannot turn messages into text."""
    todo = "Put the model's chat_template.jinja into the folder."
    return SlimeError("the tokenizer has no chat template", where=str(folder), todo=todo)


def read_object(path: Path) -> dict[str, Any]:
    """A file's JSON object; empty where there is no such file, or none that can be read: whoever needs it tells."""
    try:
        return _object(path)
    except (OSError, ValueError, RecursionError):
        return {}


def _object(path: Path) -> dict[str, Any]:
    found = json.loads(read_small(path))
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    return found


def _ends(path: Path) -> bool:
    """A JSON object's end in the last bytes: files of 20 MB are not read for that."""
    with path.open("rb") as file:
        file.seek(-min(path.stat().st_size, 64), os.SEEK_END)
        return file.read().rstrip().endswith(b"}")
