"""The addresses of servers that somebody else started (`rollout.addresses`)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from slime.errors import SlimeError
from slime.files import read_small

_ADDRESS = re.compile(r"http://([^\s:/]+|\[[0-9a-fA-F:]+\]):\d{1,5}/?")


def addresses_of(entries: Iterable[str]) -> list[str]:
    """Each server once, as `http://host:port`.

    Args:
        entries: addresses, and files with an address a line; empty lines and those that begin with # are none.

    Raises:
        SlimeError: an entry is neither, or a file cannot be read.
    """
    found = (address for entry in entries for address in _of_entry(entry))
    return [*dict.fromkeys(address.rstrip("/") for address in found)]


def _of_entry(entry: str) -> Iterator[str]:
    if _ADDRESS.fullmatch(entry):
        yield entry
        return
    path, todo = Path(entry).expanduser(), "Write http://<host>:<port>, or the path of a file with one a line."
    if "://" in entry or not path.is_file():
        raise SlimeError(f"'{entry}' is neither an address nor a file", where="rollout.addresses", todo=todo)
    try:
        lines = read_small(path).decode(errors="replace").splitlines()
    except OSError as error:
        raise SlimeError(f"cannot be read: {error}", where=str(path), todo=todo) from None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if text and not text.startswith("#"):
            if not _ADDRESS.fullmatch(text):
                raise SlimeError(
                    f"'{text}' is no address", where=f"{path}:{number}", todo="Write http://<host>:<port>."
                )
            yield text
