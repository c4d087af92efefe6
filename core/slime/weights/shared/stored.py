"""Weight versions as folders, for engines that share no memory with the publisher and no network but a file system.

    000012-v11/manifest.json   written last: contents, digests, every file with size and CRC-32, and what it builds on
               00000.full      the memory of a bucket
               00001.delta     what changed in a bucket since the version before (`slime.weights.shared.delta`)
    .000013-v12.partial        a version under way, or one that died; the next publish removes it
    lock                       of the run that writes here

A version appears by one rename, so every folder that is named so is whole: a kill at any moment leaves the last one.
The first number counts publishes, the second is the weight version, which a resumed run publishes again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slime.digest import FileFacts
from slime.errors import SlimeError
from slime.weights.shared.bucket import Header

MANIFEST = "manifest.json"
_NAME = re.compile(r"(\d{6,})-v\d+")


@dataclass(frozen=True)
class StoredBucket:
    """A bucket in a file of its own.

    Attributes:
        size: bytes of its memory.
        word: of a delta, the bytes of what was compared; None: the file has the memory itself.
    """

    file: str
    facts: FileFacts
    header: Header
    size: int
    word: int | None


@dataclass(frozen=True)
class Manifest:
    """What a version's folder says of it.

    Attributes:
        summary: as an engine's receipt says it.
        builds_on: folders of the versions that it needs, each the base of the next, from a full one on; none: it is
            full itself.
        base: fingerprint of the last of them.
        deltas_follow: an engine that keeps the buckets' memory needs to read the next version's deltas alone.
        digests: of every tensor, in their order.
    """

    version: int
    summary: Mapping[str, Any]
    builds_on: Sequence[str]
    base: str
    deltas_follow: bool
    digests: Sequence[int]
    buckets: Sequence[StoredBucket]

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def _bucket(fields: Mapping[str, Any]) -> StoredBucket:
    return StoredBucket(**{**fields, "header": Header(**fields["header"])})


def folder_name(serial: int, version: int) -> str:
    return f"{serial:06}-v{version}"


def serial_of(name: str) -> int:
    """Of a folder's name, partial or whole."""
    return int(name.lstrip(".").partition("-")[0])


def stored(folder: Path) -> list[str]:
    """Names of the versions that are there, in the order in which they were published."""
    names = [path.name for path in folder.iterdir() if _NAME.fullmatch(path.name)]
    return sorted(names, key=serial_of)


def read_manifest(folder: Path, name: str) -> Manifest:
    """Of a version.

    Raises:
        SlimeError: the version is not there, or its manifest is damaged.
    """
    path = folder / name / MANIFEST
    try:
        fields = json.loads(path.read_bytes())
        return Manifest(**{**fields, "buckets": [_bucket(bucket) for bucket in fields["buckets"]]})
    except FileNotFoundError:
        what, todo = f"there is no version '{name}'", "Publish again: old versions are removed."
        raise SlimeError(what, where=str(folder), todo=todo) from None
    except (ValueError, KeyError, TypeError) as error:
        raise SlimeError(
            f"the manifest is damaged ({error!r})", where=str(path), todo="Remove that folder and publish again."
        ) from None
