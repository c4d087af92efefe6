"""Options of what a plugin brings, a reward for instance: typed by the schema, or by the factory without one."""

from __future__ import annotations

import dataclasses
import inspect
import types
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from slime.config.keys import type_in_words
from slime.errors import SlimeError, did_you_mean, nearest
from slime.registry import Contribution


def check_options(
    item: Contribution, options: Mapping[str, Any], schema: type | None, home: str, elsewhere: Collection[str] = ()
) -> Iterator[SlimeError]:
    """What is wrong with the options of one contribution, which stand under the key `home`; `elsewhere`: fields of the
    schema that are keys of their own."""
    names, required = _of_factory(item)
    if schema:
        names = {field.name for field in _fields(schema)} - {*elsewhere}
        required = names - defaults_of(schema).keys()
    for name in options:
        if names is not None and name not in names:
            todo = did_you_mean(name, names) if names else "Remove it: it takes no options."
            if home == "reward.options" and not nearest(name, names):  # perhaps of a task with another reward
                todo += f" '~{home}.{name}' removes what a task has set."
            yield SlimeError(f"{item.kind} '{item.name}' has no such option", where=f"{home}.{name}", todo=todo)
    for name in required - options.keys():
        what, where = f"{item.kind} '{item.name}' needs this option", f"{home}.{name}"
        yield SlimeError(what, where=where, todo=f"Set {where}=...")
    if schema:
        yield from _type_faults(options, schema, home)


def defaults_of(schema: type | None) -> dict[str, Any]:
    """The options that a schema gives a default; the others must be set."""
    defaults = {}
    for field in _fields(schema):
        if field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
        elif field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
    return defaults


def completed(schema: type | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options with what a schema fills in by its static `complete(options)`, if it has one."""
    complete = getattr(schema, "complete", None)
    return dict(complete(options)) if complete else options


def own_problems(schema: type | None, options: Mapping[str, Any], home: str) -> Iterable[SlimeError]:
    """What a schema itself finds wrong with options that are of its types, by its static `problems(options, home)`."""
    problems = getattr(schema, "problems", None)
    return problems(options, home) if problems else ()


def _fields(schema: type | None) -> list[dataclasses.Field[Any]]:
    """The fields of the constructor."""
    return [field for field in dataclasses.fields(schema) if field.init] if schema else []


def _of_factory(item: Contribution) -> tuple[set[str] | None, set[str]]:
    """Keyword names the factory takes (None: any) and those without a default."""
    parameters = inspect.signature(item.factory).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None, set()
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    return {parameter.name for parameter in parameters}, required


def _type_faults(options: Mapping[str, Any], schema: type, home: str) -> Iterator[SlimeError]:
    """One option at a time, so that each is named."""
    hints = typing.get_type_hints(schema)
    for name in options.keys() & hints.keys():
        where, hint, value = f"{home}.{name}", hints[name], options[name]
        if choices := _literals(hint):
            if not any(value == choice and type(value) is type(choice) for choice in choices):
                todo = did_you_mean(str(value), ["null" if choice is None else str(choice) for choice in choices])
                yield SlimeError(f"must be {type_in_words(hint)}, got '{value}'", where=where, todo=todo)
        elif fault := _conversion_fault(hint, value):
            yield SlimeError(fault, where=where, todo=f"It takes {type_in_words(hint)}.")


def _literals(hint: Any) -> list[Any]:
    """The values of a `Literal`, which may be optional; none of another type."""
    if typing.get_origin(hint) is typing.Literal:
        return list(typing.get_args(hint))
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return []
    found = [[None] if part is type(None) else _literals(part) for part in typing.get_args(hint)]
    return [value for values in found for value in values] if all(found) else []


def _conversion_fault(hint: Any, value: Any) -> str:
    """OmegaConf's own conversion; empty if it works, and for a type that OmegaConf cannot hold, which nobody checks."""
    try:
        single = OmegaConf.structured(dataclasses.make_dataclass("Single", [("value", hint)]))
    except OmegaConfBaseException:
        return ""
    try:
        OmegaConf.update(single, "value", value)
    except OmegaConfBaseException as error:
        return str(error).splitlines()[0]
    return ""
