"""`slime completion bash`: a script for the shell, which asks `slime completion --line` what words may follow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slime import usage
from slime.tools.arguments import ArgumentParser

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


def main(argv: Sequence[str]) -> None:
    """Run `slime completion <argv>`."""
    parser = ArgumentParser(
        prog="slime completion", description="Print a script that completes slime's commands; its first line says how."
    )
    wanted = parser.add_mutually_exclusive_group(required=True)
    wanted.add_argument("shell", nargs="?", choices=sorted(SCRIPTS))
    wanted.add_argument("--line", help="print the words that may stand at the end of this command line")
    args = parser.parse_args(argv)
    print(SCRIPTS[args.shell] if args.shell else "\n".join(words_for(args.line)), end="" if args.shell else "\n")


def words_for(line: str) -> list[str]:
    """What the last word of a command line may be, sorted; a part of a key ends in `.`, a key in `=`."""
    _, *words = line.split()
    current = "" if line[-1:].isspace() else words.pop()
    verb = words[0] if words and words[0] in usage.VERBS else None
    return sorted({word for word in _candidates(verb, words, current) if word.startswith(current)})


def _candidates(verb: str | None, words: Sequence[str], current: str) -> Iterator[str]:
    if verb == "completion":
        yield from SCRIPTS
    if verb == "convert" and not words[1:]:
        yield from usage.CONVERSIONS
    if words == ["plan"]:
        yield "convert"
    if words == ["plan", "convert"]:
        yield from (name for name in usage.CONVERSIONS if name not in ("random", "check"))
        return
    if verb in usage.OWN_PARSER and not (verb == "eval" and words[1:]):  # whose first word is a folder
        return
    if current.startswith("-"):
        yield from ("--help", *usage.FLAGS.get(verb or "train", {}))
        return
    if not words:
        yield from usage.VERBS
    if verb == "plugins":
        return
    plus = current[: len(current) - len(current.lstrip("+"))]
    given = {word.partition("=")[0].lstrip("+") for word in words}
    for word in _assignments(current.lstrip("+"), given):
        if not plus or "." not in word.partition("=")[0]:  # a key needs no +
            yield f"{plus}{word}"


def _assignments(current: str, given: Iterable[str]) -> Iterator[str]:
    """Choices of a group, values of a key, or the next part of every key."""
    from slime import plugins
    from slime.config import groups

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

    known = own_keys().get(key)
    if known is None:
        return ()
    return [value for kind in known.type.split(" or ") for value in _of_type(kind)]


def _of_type(kind: str) -> Sequence[str]:
    """The values of a type as `Key.type` has it in words, none where there is no end of them."""
    if kind == "bool":
        return ("true", "false")
    return ("null",) if kind == "null" else kind.split(" | ") if "|" in kind else ()
