"""Which verbs there are, and which one a command line calls."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from slime import plugins
from slime.arguments import ArgumentParser
from slime.contracts import Verb, VerbFactory
from slime.errors import SlimeError
from slime.extras import apart, how_to_get
from slime.plugins import BUILTIN, VERB


def factories() -> dict[str, VerbFactory]:
    """What is installed, by name; names of two words are options of verbs."""
    return {item.name: item.factory for item in plugins.load().verbs if isinstance(item.factory, VerbFactory)}


def names() -> list[str]:
    """Every verb that is installed, or that a distribution of this repository brings."""
    return list({**factories(), **apart(VERB)})


def find(words: Sequence[str], known: Collection[str]) -> tuple[str | None, list[str]]:
    """The verb of `known` that the words after `slime` call, and the words for it; None if they begin with no verb."""
    verb, *rest = words or [""]
    for name in known:
        head, _, option = name.partition(" ")
        if option and head == verb and option in (rest if option.startswith("-") else rest[:1]):
            rest.remove(option)
            return name, rest
    return (verb, rest) if verb in known else (None, list(words))


def load(name: str) -> Verb:
    """Import a verb of `names()`.

    Raises:
        SlimeError: it is not installed, or its distribution is broken.
    """
    installed = plugins.load()
    if name in installed.verbs:
        return installed.verbs.create(name)
    package = apart(VERB)[name]
    for plugin in installed.installed:
        if plugin.distribution == package and plugin.problem:
            raise plugin.problem
    raise SlimeError(f"'slime {name}' comes with {package}, which is not installed", todo=how_to_get(f"{VERB}/{name}"))


def parser_of(name: str, verb: Verb) -> ArgumentParser:
    parser = ArgumentParser(prog=f"slime {name}")
    verb.add_arguments(parser)
    options = {option: each.help for option, each in factories().items() if option.startswith(f"{name} ")}
    more = "\n".join(f"  slime {option:<15} {text}" for option, text in options.items())
    parser.epilog = "\n".join(filter(None, (parser.epilog, f"see also:\n{more}" if more else "")))
    return parser


def takers_of_flags() -> Mapping[str, Collection[str]]:
    """Flag -> the verbs that take it, among slime's own."""
    takers: dict[str, dict[str, None]] = defaultdict(dict)
    for name in names():
        head, _, option = name.partition(" ")
        if option.startswith("-"):
            takers[option][head] = None
    for item in plugins.load().verbs:
        if item.distribution == BUILTIN:
            for flag in parser_of(item.name, load(item.name)).flags:
                takers[flag][item.name.partition(" ")[0]] = None
    return {flag: list(verbs) for flag, verbs in takers.items()}


def overview() -> str:
    """The first page of help, without the choices, which depend on what is installed."""
    verbs = factories()
    absent = [f"{name} ({package})" for name, package in apart(VERB).items() if name not in verbs]
    return "\n".join(
        [
            "slime post-trains large language models with reinforcement learning: generate, reward, train, publish.",
            "",
            "  slime [train] +model=<model> +cluster=<cluster> [key=value ...]",
            "",
            *(f"  slime {name:<11} {verb.help}" for name, verb in verbs.items() if " " not in name),
            *([f"  not installed: {', '.join(absent)}"] if absent else []),
            "",
            "  slime <verb> --help   what a verb takes",
            "  slime --version",
            "",
            "Keys are in docs/config.md. Keys under train.megatron, train.optimizer, train.ddp and rollout.sglang are",
            "Megatron-core's and SGLang's own. What can be chosen here:",
        ]
    )
