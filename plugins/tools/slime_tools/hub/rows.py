"""Prompt sets by an address of the hub: `hf://OWNER/NAME[@REVISION][/SUBSET][:SPLIT]`."""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from urllib.parse import unquote

from slime.data.shards import chosen
from slime.errors import SlimeError
from slime_tools.hub.client import client, told

_ADDRESS = re.compile(
    r"hf://(?:datasets/)?(?P<name>[\w.-]+/[\w.-]+)(?:@(?P<commit>refs/[^/:@]+/[^/:@]+|[^/:@]+))?"
    r"(?:/(?P<inside>[^:@]+?)/?)?(?:@(?P<branch>[^:@]+))?(?::(?P<split>[^:@]+))?"
)
DATASET = "dataset"
log = logging.getLogger(__name__)


def rows_of(address: str) -> Path:
    """The files of a set, fetched into the hub's cache where they are not there, as a path that `row_files` takes. A
    revision that is not named is the hub's newest, or the cache's where the hub is not reached.

    Raises:
        SlimeError: there is no such set, or it cannot be had.
    """
    found = _fetched(address)
    if isinstance(found, SlimeError):
        raise found.with_traceback(None)
    return found


@cache
def _fetched(address: str) -> Path | SlimeError:
    """Once a process: a plan asks for the same address several times."""
    try:
        return _fetch(address)
    except SlimeError as error:
        return error


def _fetch(address: str) -> Path:
    parts = _ADDRESS.fullmatch(address)
    if parts is None:
        todo = "Write hf://OWNER/NAME[@REVISION][/SUBSET][:SPLIT], such as hf://openai/gsm8k/main:train."
        raise SlimeError("it is no address of the hub", where=address, todo=todo)
    hub, name = client(address), parts["name"]
    revision = unquote(parts["commit"] or parts["branch"] or "main")
    with told(address, "data set", name):
        try:
            info = hub.HfApi().dataset_info(name, revision=revision)
            names = [each.rfilename for each in info.siblings]
        except hub.errors.RevisionNotFoundError:
            raise
        except (hub.errors.HTTPError, OSError):
            try:
                cached = hub.get_cached_repo_tree(name, repo_type=DATASET, revision=revision)
            except hub.errors.CachedRepoTreeNotFoundError:
                cached = []
            if not cached:
                raise
            names = [each.path for each in cached]
            log.warning("%s: the hub is not reached, the cache is taken", address)
        inside, split = parts["inside"] or "", parts["split"] or ""
        place, files = _place(names, inside, split, address.removesuffix(f":{split}"))
        patterns = [glob.escape(file) for file in files]
        # By the branch's name, which the cache keeps for times without a hub.
        folder = hub.snapshot_download(name, repo_type=DATASET, revision=revision, allow_patterns=patterns)
    return Path(f"{folder}{place}")


def _place(names: Sequence[str], inside: str, split: str, where: str) -> tuple[str, list[str]]:
    """What stands behind the repository's folder in the set's path, and its files."""
    if inside in names:
        return f"/{inside}", [inside]
    below = [each.removeprefix(f"{inside}/") for each in names if inside and each.startswith(f"{inside}/")]
    if below:
        found, files = chosen(below, split, where)
        return f"/{inside}:{found}", [f"{inside}/{file}" for file in files]
    found, files = chosen(names, "/".join(filter(None, (inside, split))), where)
    return f":{found}", files
