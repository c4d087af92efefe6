"""Reads the words after a verb, and says what a word that no verb takes was meant to be."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence

from slime.arguments import ArgumentParser
from slime.errors import SlimeError, did_you_mean, nearest

_HYDRAS = ("--cfg", "-c", "--config-name", "--config-path", "--config-dir", "--info", "--resolve")
_SWEEPS = ("--multirun", "-m")


def read(parser: ArgumentParser, words: Sequence[str]) -> Namespace:
    """Parse the words after a verb, which are kept as `args.words`.

    Raises:
        SlimeError: a word does not fit.
    """
    if parser.takes_keys:
        args, strange = parser.parse_known_intermixed_args(words)
        refuse_strangers([*strange, *args.keys])
    else:
        args = parser.parse_args(words)
    args.words = list(words)
    return args


def refuse_strangers(words: Sequence[str]) -> None:
    """Raise for the first word that sets no key; flags that the verb takes are not among `words`.

    Raises:
        SlimeError: there is one, or two words set the same key.
    """
    for word in words:
        if not word.strip():
            todo = "Leave it out; a variable of the shell may be unset."
            raise SlimeError(f"'{word}' is an empty word, not key=value", todo=todo)
        if word in _SWEEPS:
            raise SlimeError(f"'{word}': a command is one run", todo="Start several, for instance in a shell loop.")
        if word in _HYDRAS:
            todo = "'slime plan --config' prints the resolved config."
            raise SlimeError(f"'{word}' is a flag of Hydra that slime does not take", todo=todo)
        if word.startswith("-"):
            raise SlimeError(f"there is no flag '{word}'", todo=_instead_of_flag(word))
        if "=" not in word and word[0] != "~":
            raise SlimeError(f"'{word}' is neither a verb nor key=value", todo=_instead_of_verb(word))
    _refuse_seconds(words)


def _refuse_seconds(words: Sequence[str]) -> None:
    """Raise where one key is given twice: Hydra would take the last one without a word."""
    given: dict[str, str] = {}
    for word in words:
        key = word.partition("=")[0].lstrip("+~")
        if key in given and not word.startswith("~"):
            raise SlimeError(f"'{given[key]}' and '{word}' set the same key", todo="Keep one of them.")
        given[key] = word


def _instead_of_verb(word: str) -> str:
    from slime.verbs.installed import names

    if "." in word or word[0] == "+":
        return f"Write {word}=<value>."
    verbs = [name for name in names() if " " not in name]
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
