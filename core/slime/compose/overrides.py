"""The command line's `key=value`, `group=option` and run files, checked against the schema and the groups, in Hydra's
form.

Hydra lets `+key=` past the schema; here `+` never adds a key that nobody declared.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from slime.arguments import RUN_FILE, is_run_file
from slime.compose.groups import DECLARED, NO_RECIPE, NO_TASK, UNSET, Groups
from slime.compose.run_file import TYPED, RunFile, Setting, read_run_file
from slime.compose.run_name import NAMED_BY, letters, variant
from slime.config.keys import Key, open_section, own_keys, suggest
from slime.errors import SlimeError, nearest
from slime.extras import how_to_get

GROUPS = {f"{group}.path": "function" for group in ("reward", "filter", "buffer", "algo")} | {"reward.parts": "sum"}
"""Short for `reward=function reward.options.path=...` and so on -> the option of the group that is meant."""
NAMED = {
    "rollout.program.path": ("rollout.program.name", "function"),
    "rollout.program.command": ("rollout.program.name", "endpoint"),
    "algo.advantage_path": ("algo.advantage", "function"),
}
"""Short for `rollout.program.options.path=...` and so on -> what is meant where the key says nothing else."""
TRACKER = "observe.trackers.path"
"""Short for `observe.trackers.function.path=...`."""
SHORT = (*GROUPS, *NAMED, TRACKER)
FIXED = ("model", "cluster", "recipe")
"""Groups that another option of is another run than one whose config is whole."""
OF_START = ("resume", "stop_at")
"""Keys of `run` that are said to one start."""
MAX_NUMBER = 10**100
REMOVED = object()


@dataclass
class CommandLine:
    """What was chosen and set, ready for Hydra.

    Attributes:
        choices: group -> option, of the declared groups that were chosen.
        files: every choice, as Hydra takes it.
        values: key and value of all others, in their order, as they are merged; `REMOVED` for one that is removed.
        typed: key or group -> value, as the user wrote them; None for one that is removed.
        words: of `typed`, what stands on the command line itself.
        variant: what they add to the name of a run that has none.
        origins: key -> file and line, of what run files say.
        run_files: their names.
        base: the file with the whole config of a run, over which all is composed.
    """

    choices: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    values: list[tuple[str, Any]] = field(default_factory=list)
    typed: dict[str, Any] = field(default_factory=dict)
    words: dict[str, Any] = field(default_factory=dict)
    variant: str = ""
    origins: dict[str, str] = field(default_factory=dict)
    run_files: list[str] = field(default_factory=list)
    base: RunFile | None = None

    @property
    def saved(self) -> dict[str, Any] | None:
        """Section -> key -> value, of `base`."""
        return self.base.saved if self.base else None

    def located(self, error: SlimeError) -> SlimeError:
        """The error with the line of the run file that sets its key, if one does."""
        return error.under(self.origins[error.where]) if self.origins.get(error.where) else error


def read_command_line(argv: Sequence[str], groups: Groups) -> CommandLine:
    """Parse and check every item; SlimeError with the nearest right name at the first that is wrong. Of two that set
    the same, the later one holds."""
    line = CommandLine()
    typed = line.typed
    for setting in _settings(argv, line, groups):
        typed[setting.key] = None if setting.is_removal else setting.value
        if not setting.where:
            line.words[setting.key] = typed[setting.key]
        with _at(setting):
            if (key := _written_out(setting.key)) and not setting.is_removal:
                line.values.append((key, setting.value))
            elif setting.key in groups and not isinstance(setting.value, dict):
                _add_choice(line, setting, groups)
            else:
                line.values.append(_assignment(setting))
    for short, option in GROUPS.items():
        if any(f"{key}.".startswith(f"{short}.") for key in typed):
            _choose_by(short, option, line, groups)
    line.values += [chosen for key, chosen in NAMED.items() if key in typed and chosen[0] not in typed]
    return line


def _settings(argv: Sequence[str], line: CommandLine, groups: Groups) -> Iterator[Setting]:
    """Those that hold, of all words and files, in their order; what the base says is checked and left out."""
    found = dict[str, Setting]()
    for number, item in enumerate(argv):
        file = read_run_file(item) if is_run_file(item) else None
        settings = file.settings if file else [_parse(item)]
        line.run_files += [file.word] if file else []
        line.origins |= {setting.key: setting.where for setting in settings}  # empty where a word comes later
        if file and file.saved:
            if number:
                raise SlimeError("is the whole config of a run", where=item, todo="Name it before all else.")
            for setting in settings:
                with _at(setting):
                    _assignment(setting)
            line.base = file
            continue
        for setting in settings:
            name = f"~{setting.key}" if setting.is_removal else setting.key
            found.pop(name, None)
            found[name] = setting
    yield from found.values()


@contextmanager
def _at(setting: Setting) -> Iterator[None]:
    """Errors get the file and the line."""
    try:
        yield
    except SlimeError as error:
        if not setting.where:
            raise
        raise error.under(setting.where) from error


def _written_out(key: str) -> str:
    """The key that one of `SHORT` stands for; empty: it is none of them."""
    short = next(
        (each for each in SHORT if key == each or (each == "reward.parts" and key.startswith(f"{each}."))), None
    )
    if short is None:
        return ""
    if short == TRACKER:
        return "observe.trackers.function.path"
    section, _, option = short.rpartition(".")
    home = f"{section}.options.{option}" if option != "advantage_path" else f"{section}.advantage_options.path"
    return f"{home}{key.removeprefix(short)}"


def _choose_by(short: str, option: str, line: CommandLine, groups: Groups) -> None:
    """A key of `GROUPS` chooses, too: `reward=function` need not be typed."""
    group, _, last = short.partition(".")
    chosen = line.choices.get(group, option)
    if chosen != option:
        takes = "function" if last == "path" else "parts"
        todo = f"Leave out {group}={chosen}, or {short}."
        if group == "filter":
            todo += " Both, one after the other, are filter.then.function.path=..."
        raise SlimeError(f"{group}={chosen} takes no {takes}", where=short, todo=todo)
    if chosen not in groups.names(group):
        raise SlimeError("this reward needs a plugin", where=short, todo=how_to_get(short))
    if group not in line.choices:
        choose(line, group, chosen, groups)


def _parse(item: str) -> Setting:
    if "=" not in item and not item.startswith("~"):
        raise SlimeError(f"'{item}' is not key=value", todo="Write for instance run.seed=1; 'slime --help' shows how.")
    # The path of a function as a key in braces, which Hydra takes for two keys.
    item = re.sub(r"(\.py):(?=\w+\s*:)", r"\1\\:", item)
    try:
        override = OverridesParser.create().parse_override(item)
    except HydraException as error:
        fault = str(error).splitlines()[0]
        raise SlimeError(f"'{item}' cannot be read: {fault}", todo=f"Quote the value: {_quoted(item)}") from error
    if not override.key_or_group:
        raise SlimeError(f"'{item}' names no key", todo="Write for instance run.seed=1.")
    if override.is_sweep_override():
        todo = f"Start one run a command; a value with commas is quoted: {_quoted(item)}"
        raise SlimeError(f"'{item}' names several values", todo=todo)
    value = None if override.is_delete() else override.value()
    is_choice = not override.is_delete() and override.package is None
    return Setting(override.key_or_group, value, item, "", override.is_delete(), is_choice)


def _quoted(item: str) -> str:
    key, _, value = item.partition("=")
    return f"""'{key}="{value.strip('"')}"'"""


def _add_choice(line: CommandLine, setting: Setting, groups: Groups) -> None:
    group, option = setting.key, setting.value
    if setting.is_removal or not setting.is_choice or not isinstance(option, str):
        plus = "+" if group in NAMED_BY else ""
        raise SlimeError(f"'{setting.text}' is not group=option", todo=f"Write {plus}{group}=<option>.")
    if option.endswith(RUN_FILE):
        raise SlimeError(f"there is no {group}={option}", todo=f"A run file is a word of its own: slime {option}.")
    if ".py" in option and f"{group}.path" in GROUPS:
        raise SlimeError(f"there is no {group}={option}", todo=f"A function of a file is {group}.path={option}.")
    groups.require(group, option)
    if group in DECLARED:
        line.choices[group] = option
    line.files.append(f"{'' if group in DECLARED else '+'}{group}={option}")


def _assignment(setting: Setting) -> tuple[str, Any]:
    key = setting.key
    value = REMOVED if setting.is_removal else setting.value
    if isinstance(value, int) and abs(value) > MAX_NUMBER:  # no float holds it
        raise SlimeError(f"is above {MAX_NUMBER:.0e}", where=key, todo="Write a smaller number.")
    home = next((home for home in TYPED if key.startswith(f"{home}.")), None)
    if home and value is not REMOVED:
        return home, _nested(key.removeprefix(f"{home}."), value)
    if open_section(key):
        return key, value
    if key not in own_keys():
        if str(value).endswith(RUN_FILE):
            raise SlimeError(f"there is no key '{key}'", todo=f"A run file is a word of its own: slime {value}.")
        raise _unknown_key(key)
    if value is REMOVED:
        raise SlimeError(f"'{setting.text}': {key} cannot be removed", todo=f"Set it: {key}=<value>.")
    return key, _typed(own_keys()[key], setting)


def _typed(key: Key, setting: Setting) -> Any:
    """The value, if it is of the key's type to the letter: OmegaConf would make true of 2, and a name of true."""
    kinds, value = key.type.split(" or "), setting.value
    if value == "" and "str" in kinds and "null" in kinds:
        return None
    wrong = {
        "bool": isinstance(value, int | float) and value not in (0, 1),
        "str": isinstance(value, bool | list | dict) or value == "",
        "list of str": not isinstance(value, list) or not all(isinstance(each, str) and each for each in value),
    }
    if any(wrong.get(kind) for kind in kinds) and value is not None:
        written = str(value) if setting.where else setting.text.partition("=")[2]
        what = f"must be {key.type}, got '{written}'" if value != "" else "is empty"
        raise SlimeError(what, where=key.name, todo=f"It is: {key.gist}")
    return value


def _nested(key: str, value: Any) -> Any:
    """`{a: {devices: 8}}` of `a.devices`: OmegaConf merges that into the schema's group, where it would make an untyped
    one for the longer key."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _unknown_key(key: str) -> SlimeError:
    from slime.config.passthrough import meant

    if key.split(".")[0] == "hydra":
        return SlimeError(f"'{key}' is Hydra's own", todo="slime decides how Hydra runs; remove it.")
    if key == "defaults":
        return SlimeError("'defaults' is Hydra's own", todo="Write each choice as a line of its own: 'reward: math'.")
    inside = [name for name in own_keys() if name.startswith(f"{key}.")]
    if inside:
        return SlimeError(f"'{key}' is a section, not a key", todo=f"Set one of its keys, for instance {inside[0]}.")
    todo = how_to_get(key) or meant(key) or _shorthand(key) or suggest(key)
    return SlimeError(f"there is no key '{key}'", todo=todo)


def _shorthand(key: str) -> str:
    """A way out of a mistyped one of `SHORT`, which no schema has."""
    section, _, last = key.rpartition(".")
    near = nearest(last, [name for home, _, name in (each.rpartition(".") for each in SHORT) if home == section])
    return f"Did you mean '{section}.{near}'?" if near else ""


def add_choices_of_model(line: CommandLine, groups: Groups) -> None:
    """The task and the recipe that belong to model and cluster, where none is chosen; a mistyped one is found. The
    run's default name tells what else was typed."""
    model, cluster = line.choices.get("model", UNSET), line.choices.get("cluster", UNSET)
    for group, choice in (("model", model), ("cluster", cluster)):
        if choice == UNSET:
            raise SlimeError(f"no {group} is chosen", todo=groups.choose(group, "+"))
    if "task" not in line.choices:
        choose(line, "task", groups.task_of(model), groups)
    if "recipe" not in line.choices:
        choose(line, "recipe", groups.recipe_for(model, cluster), groups)
    usual = {"task"} if line.choices["task"] == groups.task_of(model) else ()
    _vary(line, line.run_files, usual)


def take_base(line: CommandLine, saved: dict[str, Any]) -> None:
    """The choices of a run that has its whole config: what another one of a group above it makes idle is taken out.

    Raises:
        SlimeError: for another model, cluster or recipe, whose sizes its keys are.
    """
    assert line.base
    for group in FIXED:
        if group in line.choices:
            todo = "Set the keys that differ, or write a run file of your own with these choices (docs/run-file.md)."
            where = f"{group}={line.choices[group]}"
            raise SlimeError(f"{line.base.word} has its keys already", where=where, todo=todo)
    chosen = {*line.choices, *({"reward"} if "task" in line.choices else ())}
    for group in chosen & {"reward", "filter", "buffer"}:
        saved[group]["options"] = {}
    if "algo" in chosen:
        saved["algo"].clear()
    for key, default in of_directory().items():
        section, _, last = key.rpartition(".")
        followed = re.sub(r"\$\{run\.(\w+)\}", lambda name: str(saved["run"].get(name[1])), default)
        if saved.get(section, {}).get(last) == followed:
            del saved[section][last]
    for key in OF_START:
        saved["run"].pop(key, None)
    line.choices |= {"recipe": NO_RECIPE, "model": saved["model"]["name"], "cluster": saved["cluster"]["name"]}
    line.choices.setdefault("task", NO_TASK)
    _vary(line, line.run_files[1:])


def of_directory() -> dict[str, str]:
    """Keys that follow the run's directory unless they are set, with their defaults."""
    return {key.name: key.default for key in own_keys().values() if "${run." in key.default}


def _vary(line: CommandLine, run_files: Sequence[str], usual: Collection[str] = ()) -> None:
    """A run file tells a run from others by its name, a word by its key."""
    stems = "".join(f"-{letters(PurePath(file).stem)}" for file in run_files)
    line.variant = stems + variant(line.words, usual)


def choose(line: CommandLine, group: str, option: str, groups: Groups) -> None:
    groups.require(group, option)
    line.choices[group] = option
    line.files.append(f"{group}={option}")
