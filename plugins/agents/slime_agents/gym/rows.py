"""Prompt sets by an address: `reasoning-gym://GENERATOR[/heldout][/demonstrations][/KEY:VALUE]...`."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from slime.errors import SlimeError
from slime_agents.cached_rows import cache, keep, printed, value_of

SCHEME = "reasoning-gym://"
DISTRIBUTION = "reasoning-gym"
TRAIN, HELD_OUT = "train", "heldout"
NUM_ROWS = {TRAIN: 1000, HELD_OUT: 256}
"""Rows where the address has no `size`."""
FORMAT = 1
"""Version of the files: another one makes them again."""
_refused: dict[str, SlimeError] = {}
"""Addresses without rows, and why: a plan asks for the same ones a few times, at seconds each."""


@dataclass(frozen=True)
class Address:
    """An address of rows.

    Attributes:
        part: no question of the one is in the other, whatever seed and size are.
        demonstrations: questions with their answers, in place of prompts.
        options: the generator's own.
    """

    generator: str
    part: str = TRAIN
    demonstrations: bool = False
    size: int = 0
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)


def rows_of(address: str) -> Path:
    """The file with the rows of an address. It is made once, and kept in the user's cache.

    Raises:
        SlimeError: reasoning-gym is not installed, there is no such generator, or it cannot make these rows.
    """
    wanted = parsed(address)
    text = json.dumps([FORMAT, asdict(wanted)], sort_keys=True)
    file = _folder() / f"{wanted.generator}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    if not file.is_file():
        if address in _refused:
            raise _refused[address].with_traceback(None)
        try:
            keep(file, _generated(wanted, address), address)
        except SlimeError as error:
            _refused[address] = error
            raise
    return file


def parsed(address: str) -> Address:
    """Raises SlimeError: the address is not of the form above."""
    generator, *parts = address.removeprefix(SCHEME).strip("/").split("/")
    given: dict[str, Any] = {}
    part, demonstrations = TRAIN, False
    for each in parts:
        key, colon, value = each.partition(":")
        if each in NUM_ROWS:
            part = each
        elif each == "demonstrations":
            demonstrations = True
        elif colon and key:
            given[key] = value_of(value)
        else:
            todo = f"Write {SCHEME}{generator}/heldout/size:100, for instance."
            raise SlimeError(f"'{each}' is no part of an address", where=address, todo=todo)
    size, seed = given.pop("size", NUM_ROWS[part]), given.pop("seed", 0)
    if type(size) is not int or not 0 < size <= 100_000:
        raise SlimeError(f"size is {size}, not a number from 1 to 100000", where=address, todo="Change it.")
    if type(seed) is not int or not 0 <= seed <= 4000:
        # Some generators seed numpy, which takes 32 bits; each seed has a million draws (`generate.py`).
        raise SlimeError(f"seed is {seed}, not a number from 0 to 4000", where=address, todo="Change it.")
    return Address(generator, part, demonstrations, size, seed, given)


def _folder() -> Path:
    try:
        version = metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        todo = "Run: pip install 'slime-agents[reasoning-gym]'. In a checkout: 'make setup'."
        raise SlimeError("reasoning-gym is not installed", todo=todo) from None
    return cache() / f"{DISTRIBUTION}-{version}"


def _generated(wanted: Address, address: str) -> str:
    """The rows, of a process of their own: generators draw from Python's hashes, and import large libraries."""
    command = [sys.executable, "-W", "ignore", "-m", "slime_agents.gym.generate", json.dumps(asdict(wanted))]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    rows, fault = printed(command, address, "Ask for fewer rows, or easier ones.", environment)
    if fault:
        what, _, todo = fault.partition("\t")
        raise SlimeError(what, where=address, todo=todo or "Change the generator's options.")
    return rows
