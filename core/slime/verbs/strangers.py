"""Reads the words after a verb, and says what a word that no verb takes was meant to be."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from slime.arguments import RUN_FILE, ArgumentParser, is_run_file
from slime.errors import SlimeError, did_you_mean, nearest
from slime.printable import printable

_HYDRAS = ("--cfg", "--info", "--resolve")
_FILES = ("--config", "-c", "--config-file", "--config-name", "--config-path", "--config-dir", "--file", "-f")
"""Flags of other programs in front of a config file."""
_SWEEPS = ("--multirun", "-m")
_VERBS = {
    "train": "run start launch fit resume continue",
    "runs": "ls list status",
    "plan": "check validate",
    "eval": "evaluate test",
}
"""Verb -> names of other programs for it, separated by blanks."""


def read(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Parse the words after a verb, which are kept as `args.words`.

    Raises:
        SlimeError: a word does not fit.
    """
    if parser.takes_keys:
        for word in words:
            flag, _, file = word.partition("=")
            if word[0:1] == "@" or (flag in _FILES and file):
                file = file or word[1:]
                raise SlimeError(f"'{word}' is not how a run file is given", todo=f"It is a word of its own: {file}.")
        args, strange = parser.parse_known_intermixed_args(words)
        refuse_strangers([*strange, *args.keys])
    else:
        args = parser.parse_args(words)
    args.words = list(words)
    return args


def refuse_strangers(words: Sequence[str]) -> None:
    """Raise for the first word that sets no key; flags that the verb takes are not among `words`.

    Raises:
        SlimeError: there is one.
    """
    for before, word in pairwise(["", *words]):
        if not word.strip():
            todo = "Leave it out; a variable of the shell may be unset."
            raise SlimeError(f"'{word}' is an empty word, not key=value", todo=todo)
        if word in _SWEEPS:
            raise SlimeError(f"'{word}': a command is one run", todo="Start several, for instance in a shell loop.")
        if word in _HYDRAS:
            todo = "'slime plan --config' prints the resolved config."
            raise SlimeError(f"'{word}' is a flag of Hydra that slime does not take", todo=todo)
        if word in _FILES:
            todo = "A run file is a word of its own: slime my.yaml; 'slime plan --config' prints the resolved config."
            raise SlimeError(f"there is no flag '{word}' here", todo=todo)
        if word.startswith("-"):
            raise SlimeError(f"there is no flag '{word}'", todo=_instead_of_flag(word))
        if "=" not in word and word[0] != "~" and not is_run_file(word):
            raise SlimeError(f"'{word}' is neither a verb nor key=value", todo=_instead_of_verb(word, before))
    _note_seconds(words)


def _note_seconds(words: Sequence[str]) -> None:
    """Say which word holds, where one key is given twice."""
    given: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        if given.get(key, word) != word and not word.startswith("~"):
            print(printable(f"slime: note: '{word}' holds, not '{given[key]}' before it"), file=sys.stderr)
        given[key] = word


def _instead_of_verb(word: str, before: str) -> str:
    from slime.verbs.installed import names

    if (Path(word) / "config.yaml").is_file():
        return f"Name the file of that run: {Path(word) / 'config.yaml'}."
    if Path(word).suffix in (".json", ".toml") or Path(word).is_file():
        return f"A run file is YAML, and its name ends with {' or '.join(RUN_FILE)}."
    if "." in word or word[0] == "+":
        return f"Write {word}=<value>."
    verbs = [name for name in names() if " " not in name]
    if "=" in before and not nearest(word, verbs):
        return f"A value with blanks is quoted: '{before} {word}'."
    if not before and (meant := next((verb for verb, others in _VERBS.items() if word in others.split()), None)):
        return f"Did you mean '{meant}'?"
    return "The verb comes first." if word in verbs else did_you_mean(word, verbs)


def _instead_of_flag(word: str) -> str:
    """What somebody meant who wrote `--model`, `--run.seed=1`, a flag of another verb, or one of another program."""
    from slime.compose.groups import DECLARED
    from slime.config.keys import own_keys, suggest
    from slime.config.passthrough import meant
    from slime.verbs.installed import takers_of_flags

    key, equals, value = word.lstrip("-").partition("=")
    if theirs := key not in own_keys() and meant(key):
        return theirs
    if key in DECLARED or "." in key:
        return f"Write {'+' if key in ('model', 'cluster') else ''}{key}={value if equals else '<value>'}."
    takers = takers_of_flags()
    if word in takers:
        verbs = " and ".join(f"'slime {verb}'" for verb in takers[word])
        return f"It belongs to {verbs}."
    flags = ["--version", *takers]
    plain = key.replace("-", "_")
    if not nearest(word, flags) and any(name.rpartition(".")[2] == plain for name in own_keys()):
        return suggest(plain)
    return did_you_mean(word, flags)
