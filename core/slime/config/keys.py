"""slime's own keys, read off the schema: their names, types, defaults and documentation."""

from __future__ import annotations

import ast
import enum
import functools
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any

from omegaconf import MISSING

from slime.config import algorithm, observe, schema, weights
from slime.errors import nearest

FOREIGN = ("train.megatron", "train.optimizer", "train.ddp", "rollout.sglang")
"""Sections whose keys are Megatron-core's and SGLang's own (`slime.config.passthrough`)."""

ANY_NAME = "<name>"
"""Part of a key that stands for a name of the user's."""


@dataclass(frozen=True)
class Key:
    """One key: dotted name, type in words, default as written on the command line, documentation."""

    name: str
    type: str
    default: str
    doc: str
    is_open: bool
    """Whether any key may stand under it (a dictionary whose keys somebody else defines)."""


@functools.cache
def own_keys() -> dict[str, Key]:
    """Every key of `SlimeConfig` that has a value, by dotted name, in the schema's order."""
    docs = _field_docs()
    return {key.name: key for key in _walk(schema.SlimeConfig, "", docs)}


def value_of(cfg: schema.SlimeConfig, key: str) -> Any:
    """The value of a dotted key."""
    section: Any = cfg
    for part in key.split("."):
        section = section[part] if isinstance(section, dict) else getattr(section, part)
    return section


def _walk(section: type, prefix: str, docs: dict[tuple[str, str], str]) -> Iterator[Key]:
    hints = typing.get_type_hints(section)
    for field in fields(section):
        hint, name = hints[field.name], f"{prefix}{field.name}"
        if is_dataclass(hint):
            yield from _walk(typing.cast(type, hint), f"{name}.", docs)
        else:
            doc = docs.get((section.__name__, field.name), "")
            yield Key(name, type_in_words(hint), _default(field), doc, typing.get_origin(hint) is dict)
            if typing.get_origin(hint) is dict and is_dataclass(item := typing.get_args(hint)[1]):
                yield from _walk(typing.cast(type, item), f"{name}.{ANY_NAME}.", docs)


def _default(field: Field[Any]) -> str:
    value = field.default if field.default_factory is NO_DEFAULT else field.default_factory()
    if value == MISSING:
        return ""
    if isinstance(value, enum.Enum):
        return value.name
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def type_in_words(hint: Any) -> str:
    """`int | None` -> "int or null", an enum -> its names, `dict[...]` -> "dictionary"."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " or ".join(type_in_words(option) for option in typing.get_args(hint))
    if hint is type(None):
        return "null"
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return " | ".join(hint.__members__)
    if typing.get_origin(hint) is list:
        return f"list of {type_in_words(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is dict:
        return "dictionary"
    return str(hint.__name__)


def _field_docs() -> dict[tuple[str, str], str]:
    """(dataclass, field) -> the docstring under the field, in one line."""
    docs = {}
    modules = (schema, algorithm, weights, observe)
    for section in (node for module in modules for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(section, ast.ClassDef):
            for before, after in zip(section.body, section.body[1:], strict=False):
                if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and _is_docstring(after):
                    text = ast.literal_eval(after.value)  # type: ignore[attr-defined]
                    docs[section.name, before.target.id] = " ".join(text.split())
    return docs


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def open_section(name: str) -> str | None:
    """The open dictionary that `name` stands in or is ("train.megatron.bf16" -> "train.megatron"), or None."""
    within = (key.name for key in own_keys().values() if key.is_open and f"{name}.".startswith(f"{key.name}."))
    return next(within, None)


def suggest(name: str) -> str:
    """What the user of an unknown key should do: the nearest key, those of the same last part, or the reference."""
    named = [key.partition(f".{ANY_NAME}.")[0] for key in own_keys() if f".{ANY_NAME}." in key]
    name = next((re.sub(rf"^({re.escape(key)})\.[^.]+", rf"\1.{ANY_NAME}", name) for key in named), name)
    last = name.rpartition(".")[2]
    match = _nearest_by_parts(name)
    namesakes = [key for key in own_keys() if key.rpartition(".")[2] == last]
    if match or len(namesakes) == 1:
        return f"Did you mean '{match or namesakes[0]}'?"
    if namesakes:
        return f"Choose one of: {', '.join(namesakes)}."
    section = name.rpartition(".")[0]
    neighbours = [key for key in own_keys() if key.rpartition(".")[0] == section and section]
    if neighbours:
        return f"'{section}' has {', '.join(key.rpartition('.')[2] for key in neighbours)}."
    match = nearest(name, own_keys())
    return f"Did you mean '{match}'?" if match else "docs/config.md lists every key."


def _nearest_by_parts(name: str) -> str | None:
    """Correct the first part that does not exist among its siblings, and see whether the result does."""
    parts = name.split(".")
    for index, part in enumerate(parts):
        above = "".join(f"{parent}." for parent in parts[:index])
        siblings = {key.removeprefix(above).split(".")[0] for key in own_keys() if key.startswith(above)}
        if part not in siblings:
            below = "".join(f".{rest}" for rest in parts[index + 1 :])
            corrected = f"{above}{nearest(part, siblings)}{below}"
            return corrected if corrected in own_keys() or open_section(corrected) else None
    return None
