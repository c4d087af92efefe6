"""The command line's `key=value` and `group=option`, checked against the schema and the groups, in Hydra's form.

Hydra lets `+key=` past the schema; here `+` never adds a key that nobody declared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from slime.config.groups import DECLARED, UNSET, Groups
from slime.config.keys import open_section, own_keys, suggest
from slime.errors import SlimeError

ENGINES = "rollout.engines"
"""A dictionary whose values have a schema."""


@dataclass
class CommandLine:
    """What was chosen and set, ready for Hydra.

    Attributes:
        choices: group -> option, of the declared groups that were chosen.
        overrides: every item, rewritten so that Hydra merges it where the user means it.
    """

    choices: dict[str, str] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)


def read_command_line(argv: Sequence[str], groups: Groups) -> CommandLine:
    """Parse and check every item; SlimeError with the nearest right name at the first that is wrong."""
    line = CommandLine()
    for item in argv:
        override = _parse(item)
        if override.key_or_group in groups and not isinstance(override.value(), dict):
            _add_choice(line, override, groups)
        else:
            line.overrides.append(_assignment(override, item))
    return line


def _parse(item: str) -> Override:
    if "=" not in item and not item.startswith("~"):
        raise SlimeError(f"'{item}' is not key=value", todo="Write for instance run.seed=1; 'slime --help' shows how.")
    try:
        override = OverridesParser.create().parse_override(item)
    except HydraException as error:
        fault = str(error).splitlines()[0]
        raise SlimeError(f"'{item}' cannot be read: {fault}", todo=f"Quote the value: {_quoted(item)}") from error
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
    line.overrides.append(f"{'' if group in DECLARED else '+'}{group}={option}")


def _assignment(override: Override, item: str) -> str:
    key = override.key_or_group
    if key.startswith(f"{ENGINES}.") and not override.is_delete():
        return _in_typed_dictionary(key, item)
    if open_section(key):
        return item if override.is_delete() else f"++{item.lstrip('+')}"
    if key not in own_keys():
        raise _unknown_key(key)
    if override.is_delete():
        raise SlimeError(f"'{item}': {key} cannot be removed", todo=f"Set it: {key}=<value>.")
    return item.lstrip("+")


def _in_typed_dictionary(key: str, item: str) -> str:
    """`rollout.engines.a.devices=8` as `rollout.engines={a:{devices:8}}`: Hydra merges that into the schema's group,
    where it would make an untyped one for the longer key."""
    _, _, value = item.partition("=")
    parts = key.removeprefix(f"{ENGINES}.").split(".")
    return f"++{ENGINES}={''.join(f'{{{part}:' for part in parts)}{value}{'}' * len(parts)}"


def _unknown_key(key: str) -> SlimeError:
    if key.split(".")[0] == "hydra":
        return SlimeError(f"'{key}' is Hydra's own", todo="slime decides how Hydra runs; remove it.")
    inside = [name for name in own_keys() if name.startswith(f"{key}.")]
    if inside:
        return SlimeError(f"'{key}' is a section, not a key", todo=f"Set one of its keys, for instance {inside[0]}.")
    return SlimeError(f"there is no key '{key}'", todo=_foreign_home(key) or suggest(key))


def _foreign_home(key: str) -> str:
    """Where a key of Megatron-core or SGLang belongs that was given without its section."""
    from slime.config.passthrough import homes_of

    homes = homes_of(key)
    return f"Did you mean '{homes[0]}'?" if homes else ""


def add_choices_of_model(line: CommandLine, groups: Groups) -> None:
    """The task and the recipe that belong to model and cluster, where none is chosen; a mistyped one is found."""
    model, cluster = line.choices.get("model", UNSET), line.choices.get("cluster", UNSET)
    for group, choice in (("model", model), ("cluster", cluster)):
        if choice == UNSET:
            raise SlimeError(f"no {group} is chosen", todo=groups.choose(group, "+"))
    if "task" not in line.choices:
        choose(line, "task", groups.task_of(model), groups)
    if "recipe" not in line.choices:
        choose(line, "recipe", groups.recipe_for(model, cluster), groups)


def choose(line: CommandLine, group: str, option: str, groups: Groups) -> None:
    """Choose for the user, who has not."""
    groups.require(group, option)
    line.choices[group] = option
    line.overrides.append(f"{group}={option}")
