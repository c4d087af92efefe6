"""Options of what a plugin brings, a reward for instance: typed by the schema, or by the factory without one."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from slime.config.keys import type_in_words
from slime.errors import SlimeError, did_you_mean
from slime.plugins import Contribution


def check_options(
    item: Contribution, options: Mapping[str, Any], schema: type | None, home: str
) -> Iterator[SlimeError]:
    """What is wrong with the options of one contribution, which stand under the key `home`."""
    names, required = _of_schema(schema) if schema else _of_factory(item)
    for name in options:
        if names is not None and name not in names:
            todo = did_you_mean(name, names) if names else "Remove it: it takes no options."
            yield SlimeError(f"{item.kind} '{item.name}' has no such option", where=f"{home}.{name}", todo=todo)
    for name in required - options.keys():
        what, where = f"{item.kind} '{item.name}' needs this option", f"{home}.{name}"
        yield SlimeError(what, where=where, todo=f"Set {where}=...")
    if schema:
        yield from _type_faults(options, schema, home)


def _of_schema(schema: type) -> tuple[set[str], set[str]]:
    fields = dataclasses.fields(schema)
    missing = dataclasses.MISSING
    required = {f.name for f in fields if f.default is missing and f.default_factory is missing}
    return {field.name for field in fields}, required


def _of_factory(item: Contribution) -> tuple[set[str] | None, set[str]]:
    """Keyword names the factory takes (None: any) and those without a default."""
    parameters = inspect.signature(item.factory).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return None, set()
    required = {parameter.name for parameter in parameters if parameter.default is parameter.empty}
    return {parameter.name for parameter in parameters}, required


def _type_faults(options: Mapping[str, Any], schema: type, home: str) -> Iterator[SlimeError]:
    """OmegaConf's own conversion against the schema, one option at a time, so that each is named."""
    hints = inspect.get_annotations(schema, eval_str=True)
    for name in options.keys() & hints.keys():
        single = dataclasses.make_dataclass("Single", [("value", hints[name])])
        try:
            OmegaConf.update(OmegaConf.structured(single), "value", options[name])
        except OmegaConfBaseException as error:
            fact = str(error).splitlines()[0]
            yield SlimeError(fact, where=f"{home}.{name}", todo=f"It takes {type_in_words(hints[name])}.")
