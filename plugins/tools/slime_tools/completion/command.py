"""`slime completion bash`: a script for the shell, which asks `slime completion --line` what words may follow."""

from __future__ import annotations

from argparse import Action, Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence

from slime import plugins
from slime.arguments import KEYS, ArgumentParser
from slime.verbs import installed

SCRIPTS: Mapping[str, str] = {
    "bash": """\
# eval "$(slime completion bash)" in ~/.bashrc
_slime() {
    local line=${COMP_LINE:0:COMP_POINT}
    local word=${line##*[[:space:]]}
    local before=${word%"${word##*[=@:]}"}  # bash takes what stands behind one of these for a word of its own
    mapfile -t COMPREPLY < <(slime completion --line "$line" 2>/dev/null)
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace
}
complete -o default -F _slime slime
""",
    "zsh": """\
# eval "$(slime completion zsh)" in ~/.zshrc, below compinit
_slime() {
    local -a found
    found=(${(f)"$(slime completion --line "$LBUFFER" 2>/dev/null)"})
    (( $#found )) || { _files; return; }
    compadd -S '' -- ${(M)found:#*[=.]}
    compadd -- ${found:#*[=.]}
}
compdef _slime slime
""",
    "fish": """\
# slime completion fish > ~/.config/fish/completions/slime.fish
complete -c slime -a '(slime completion --line (commandline -cp) 2>/dev/null)'
""",
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Print a script that completes slime's commands; its first line says how."
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("shell", nargs="?", choices=sorted(SCRIPTS))
    wanted.add_argument("--line", help="print the words that may stand at the end of this command line")


def run(args: Namespace) -> None:
    print(SCRIPTS[args.shell] if args.shell else "\n".join(words_for(args.line)), end="" if args.shell else "\n")


def words_for(line: str) -> list[str]:
    """What the last word of a command line may be, sorted; a part of a key ends in `.`, a key in `=`."""
    _, *words = line.split()
    current = "" if line[-1:].isspace() else words.pop()
    return sorted({word for word in _candidates(words, current) if word.startswith(current)})


def _candidates(words: Sequence[str], current: str) -> Iterator[str]:
    known = installed.factories()
    verb, given = installed.find(words, known)
    if not words:
        yield from (name for name in known if " " not in name)
    for name in known:
        head, _, option = name.partition(" ")
        if head == verb and (option.startswith("-") or (option and not given)):
            yield option
    name = verb or "train"
    parser, awaited = _awaits(installed.parser_of(name, installed.load(name)), given)
    if current.startswith("-"):
        yield from parser.flags
    elif awaited and awaited.dest == KEYS:
        yield from _keys_and_choices(given, current)
    elif awaited:
        yield from awaited.choices or ()


def _awaits(parser: ArgumentParser, words: Sequence[str]) -> tuple[ArgumentParser, Action | None]:
    """The argument after `words`, and the parser that takes it: this one, or one inside it."""
    by_place = [action for action in parser._actions if not action.option_strings]
    for number, word in enumerate(words):
        if by_place and not word.startswith("-"):
            if isinstance(inner := (by_place[0].choices or {}), dict) and word in inner:
                return _awaits(inner[word], words[number + 1 :])
            by_place = by_place if by_place[0].nargs == "*" else by_place[1:]
    return parser, by_place[0] if by_place else None


def _keys_and_choices(given: Sequence[str], current: str) -> Iterator[str]:
    plus = current[: len(current) - len(current.lstrip("+"))]
    set_already = {word.partition("=")[0].lstrip("+") for word in given}
    for word in _assignments(current.lstrip("+"), set_already):
        if not plus or "." not in word.partition("=")[0]:  # a key needs no +
            yield f"{plus}{word}"


def _assignments(current: str, given: Iterable[str]) -> Iterator[str]:
    """Choices of a group, values of a key, or the next part of every key."""
    from slime.compose import groups

    key, equals, _ = current.partition("=")
    options = groups.scan(plugins.load())
    if equals and key in options:
        yield from (f"{key}={name}" for name in options.names(key))
    elif equals:
        yield from (f"{key}={value}" for value in _values(key))
    else:
        yield from (f"{group}=" for group in groups.DECLARED if group not in given)
        above = current.rpartition(".")[0]
        for name in _keys():
            if name.startswith(f"{above}." if above else ""):
                part, dot, _ = name[len(above) + 1 if above else 0 :].partition(".")
                yield f"{above}.{part}{dot or '='}" if above else f"{part}{dot or '='}"


def _keys() -> Iterator[str]:
    from slime.config.keys import ANY_NAME, FOREIGN, own_keys
    from slime.config.passthrough import settable

    yield from (name for name, key in own_keys().items() if not key.is_open and ANY_NAME not in name)
    yield from (f"{section}.{field}" for section in FOREIGN for field in settable(section))


def _values(key: str) -> Sequence[str]:
    from slime.config.keys import own_keys
    from slime.config.weights import AUTO

    if key == "weights.transport":
        return [AUTO, *plugins.load().transports.names()]
    known = own_keys().get(key)
    if known is None:
        return ()
    few = {"bool": ["true", "false"], "null": ["null"]}  # else there is no end of them
    return [
        value for kind in known.type.split(" or ") for value in few.get(kind, kind.split(" | ") if "|" in kind else ())
    ]
