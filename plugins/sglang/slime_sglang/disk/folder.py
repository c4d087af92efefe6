"""Weight versions as folders, for engines that share no memory with the publisher and no network but a file system.

    000012-v11/manifest.json   written last: contents, digests, every file with size and CRC-32, and what it builds on
               00000.full      the memory of a bucket
               00001.delta     what changed in a bucket since the version before (`slime_sglang.disk.delta`)
    .000013-v12.partial        a version under way, or one that died; the next publish removes it
    lock                       of the run that writes here

A version appears by one rename, so every folder that is named so is whole: a kill at any moment leaves the last one.
The first number counts publishes, the second is the weight version, which a resumed run publishes again.
"""

from __future__ import annotations

import re
from pathlib import Path

_NAME = re.compile(r"(\d{6,})-v\d+")


def folder_name(serial: int, version: int) -> str:
    return f"{serial:06}-v{version}"


def serial_of(name: str) -> int:
    """Number of a folder, partial or whole, by its name."""
    return int(name.lstrip(".").partition("-")[0])


def stored(folder: Path) -> list[str]:
    """Names of the versions that are there, in the order in which they were published."""
    names = [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(names, key=serial_of)
