"""The command line's `key=value` and `group=option`, checked against the schema and the groups, in Hydra's form.

Hydra lets `+key=` past the schema; here `+` never adds a key that nobody declared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from slime.compose.groups import DECLARED, UNSET, Groups
from slime.compose.run_name import variant
from slime.config.keys import Key, open_section, own_keys, suggest
from slime.errors import SlimeError, nearest
from slime.extras import how_to_get

TYPED = ("rollout.engines", "data.sets", "eval.sets")
"""Dictionaries of sections, whose names are the user's."""
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
        variant: what they add to the name of a run that has none.
    """

    choices: dict[str, str] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    values: list[tuple[str, Any]] = field(default_factory=list)
    typed: dict[str, Any] = field(default_factory=dict)
    variant: str = ""


def read_command_line(argv: Sequence[str], groups: Groups) -> CommandLine:
    """Parse and check every item; SlimeError with the nearest right name at the first that is wrong."""
    line = CommandLine()
    typed = line.typed
    for item in argv:
        override = _parse(item)
        typed[override.key_or_group] = None if override.is_delete() else override.value()
        if (key := _written_out(override.key_or_group)) and not override.is_delete():
            line.values.append((key, override.value()))
        elif override.key_or_group in groups and not isinstance(override.value(), dict):
            _add_choice(line, override, groups)
        else:
            line.values.append(_assignment(override, item))
    for short, option in GROUPS.items():
        if any(f"{key}.".startswith(f"{short}.") for key in typed):
            _choose_by(short, option, line, groups)
    line.values += [chosen for key, chosen in NAMED.items() if key in typed and chosen[0] not in typed]
    return line


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


def _parse(item: str) -> Override:
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
    return override


def _quoted(item: str) -> str:
    key, _, value = item.partition("=")
    return f"""'{key}="{value.strip('"')}"'"""


def _add_choice(line: CommandLine, override: Override, groups: Groups) -> None:
    group, option = override.key_or_group, override.value()
    if override.is_delete() or override.package is not None or not isinstance(option, str):
        raise SlimeError(f"'{override.input_line}' is not group=option", todo=f"Write {group}=<option>.")
    groups.require(group, option)
    if group in DECLARED:
        line.choices[group] = option
    line.files.append(f"{'' if group in DECLARED else '+'}{group}={option}")


def _assignment(override: Override, item: str) -> tuple[str, Any]:
    key = override.key_or_group
    value = REMOVED if override.is_delete() else override.value()
    if isinstance(value, int) and abs(value) > MAX_NUMBER:  # no float holds it
        raise SlimeError(f"is above {MAX_NUMBER:.0e}", where=key, todo="Write a smaller number.")
    home = next((home for home in TYPED if key.startswith(f"{home}.")), None)
    if home and value is not REMOVED:
        return home, _nested(key.removeprefix(f"{home}."), value)
    if open_section(key):
        return key, value
    if key not in own_keys():
        raise _unknown_key(key)
    if value is REMOVED:
        raise SlimeError(f"'{item}': {key} cannot be removed", todo=f"Set it: {key}=<value>.")
    return key, _typed(own_keys()[key], value, item)


def _typed(key: Key, value: Any, item: str) -> Any:
    """The value, if it is of the key's type to the letter: OmegaConf would make true of 2, and a name of true."""
    kinds = key.type.split(" or ")
    if value == "" and "str" in kinds and "null" in kinds:
        return None
    wrong = {
        "bool": isinstance(value, int | float) and value not in (0, 1),
        "str": isinstance(value, bool | list | dict) or value == "",
        "list of str": isinstance(value, list) and not all(isinstance(each, str) and each for each in value),
    }
    if any(wrong.get(kind) for kind in kinds) and value is not None:
        what = f"must be {key.type}, got '{item.partition('=')[2]}'" if value != "" else "is empty"
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
    line.variant = variant(line.typed, usual)


def choose(line: CommandLine, group: str, option: str, groups: Groups) -> None:
    groups.require(group, option)
    line.choices[group] = option
    line.files.append(f"{group}={option}")
