"""What is in the folder of a version: its manifest (`slime_sglang.disk.folder`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slime.digest import FileFacts, sealed, unsealed
from slime.errors import SlimeError
from slime.files import read_small
from weight_buckets.bucket import Header

MANIFEST = "manifest.json"


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
        summary: as an engine's receipt has it.
        builds_on: folders of the versions that it needs, from a full one on, each the base of the next.
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
        return sealed(asdict(self))


def _bucket(fields: Mapping[str, Any]) -> StoredBucket:
    return StoredBucket(**{**fields, "header": Header(**fields["header"])})


def read_manifest(folder: Path, name: str) -> Manifest:
    """A version's manifest; raises SlimeError if the version is not there, or its manifest is damaged."""
    path = folder / name / MANIFEST
    try:
        fields = unsealed(read_small(path))
        return Manifest(**{**fields, "buckets": [_bucket(bucket) for bucket in fields["buckets"]]})
    except FileNotFoundError:
        what, todo = f"there is no version '{name}'", "Publish again: old versions are removed."
        raise SlimeError(what, where=str(folder), todo=todo) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        what = f"the manifest is damaged ({error})"
        raise SlimeError(what, where=str(path), todo="Remove that folder and publish again.") from None
