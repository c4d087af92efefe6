"""slime's own keys, read off the schema: their names, types, defaults and documentation."""

from __future__ import annotations

import ast
import enum
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import Field, dataclass, fields, is_dataclass
from typing import Any

from omegaconf import MISSING

from slime.config import algorithm, cluster, schema, weights
from slime.config.declare import Bound, declared
from slime.config.extended import SECTIONS, extended, schemas_of
from slime.errors import nearest

FOREIGN = ("train.megatron", "train.optimizer", "train.ddp", "rollout.sglang")
"""Sections whose keys are Megatron-core's and SGLang's own (`slime.config.passthrough`)."""

ANY_NAME = "<name>"
"""Part of a key that stands for a name of the user's."""

MAX_GIST = 160
"""Characters."""


@dataclass(frozen=True)
class Key:
    """One key: dotted name, type in words, default as written on the command line, documentation."""

    name: str
    type: str
    default: str
    doc: str
    is_open: bool
    """Whether any key may stand under it (a dictionary whose keys somebody else defines)."""
    bound: Bound | None = None
    known_as: str = ""
    """Names in older versions and other programs, separated by blanks."""

    @property
    def gist(self) -> str:
        """What it means in a message: the first sentence, of a long one its first part."""
        sentence = self.doc.partition(". ")[0].rstrip(".")
        return f"{sentence if len(sentence) <= MAX_GIST else sentence.partition(';')[0]}."


def own_keys() -> dict[str, Key]:
    """Every key of `SlimeConfig` that has a value, by dotted name, in the schema's order."""
    sections: tuple[type, ...] = tuple(extended(base) for _, base in SECTIONS.values())
    if sections not in _known:
        docs = _field_docs(sections)
        _known[sections] = {key.name: key for key in _walk(schema.SlimeConfig, "", docs)}
    return _known[sections]


_known: dict[tuple[type, ...], dict[str, Key]] = {}
"""By the sections that plugins add keys to."""


def default_config() -> schema.SlimeConfig:
    """The schema with its defaults, the keys that installed plugins add among them."""
    return schema.SlimeConfig(**{section: extended(base)() for section, base in SECTIONS.values()})


def added_keys(kind: str) -> dict[str, list[str]]:
    """By name of an installed transport, quantization or kind of adapters, the keys that it adds."""
    section, base = SECTIONS[kind]
    own = {field.name for field in fields(base)}
    return {
        name: [f"{section}.{field.name}" for field in fields(schema) if field.name not in own]
        for name, schema in schemas_of(kind).items()
    }


def value_of(cfg: schema.SlimeConfig, key: str) -> Any:
    """The value of a dotted key; None of one that a dictionary has not."""
    section: Any = cfg
    for part in key.split("."):
        section = section.get(part) if isinstance(section, dict) else getattr(section, part)
    return section


def may_change(section: type = schema.SlimeConfig, prefix: str = "") -> Iterator[str]:
    """Keys, and patterns of keys, that a resumed run may change (`slime.config.declare.key` says why)."""
    hints = typing.get_type_hints(section)
    for field in fields(section):
        name, free = f"{prefix}{field.name}", declared(field).may_change
        if is_dataclass(hints[field.name]):
            yield from [f"{name}.*"] if free else may_change(hints[field.name], f"{name}.")
        elif isinstance(free, str):
            yield from (f"{name}.{pattern}" for pattern in free.split())
        elif free:
            yield name


def _walk(section: type, prefix: str, docs: dict[tuple[str, str], str]) -> Iterator[Key]:
    section = extended(section)
    hints = typing.get_type_hints(section)
    for field in fields(section):
        hint, name = hints[field.name], f"{prefix}{field.name}"
        if is_dataclass(hint):
            yield from _walk(typing.cast(type, hint), f"{name}.", docs)
        else:
            doc = next((docs[key] for base in section.__mro__ if (key := (base.__name__, field.name)) in docs), "")
            is_open, told = typing.get_origin(hint) is dict, declared(field)
            yield Key(name, type_in_words(hint), _default(field), doc, is_open, told.bound, told.known_as)
            if is_open and is_dataclass(item := typing.get_args(hint)[1]):
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
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(map(str, typing.get_args(hint)))
    if typing.get_origin(hint) is list:
        return f"list of {type_in_words(typing.get_args(hint)[0])}"
    if typing.get_origin(hint) is dict:
        return "dictionary"
    return str(getattr(hint, "__name__", hint))


def _field_docs(sections: Sequence[type]) -> dict[tuple[str, str], str]:
    """(dataclass, field) -> the docstring under the field, in one line."""
    docs = {}
    bases = (base for section in sections for base in section.__mro__ if is_dataclass(base))
    modules = {schema, algorithm, cluster, weights, *(sys.modules[base.__module__] for base in bases)}
    for section in (node for module in modules for node in ast.parse(inspect.getsource(module)).body):
        if isinstance(section, ast.ClassDef):
            for before, after in zip(section.body, section.body[1:], strict=False):
                match before, after:
                    case ast.AnnAssign(target=ast.Name(field)), ast.Expr(ast.Constant(str(text))):
                        docs[section.name, field] = " ".join(text.split())
    return docs


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
    namesakes = [key for key in namesakes if ANY_NAME not in key] or namesakes
    if match or len(namesakes) == 1:
        return f"Did you mean '{match or namesakes[0]}'?"
    if namesakes:
        return f"Choose one of: {', '.join(namesakes)}."
    section = name.rpartition(".")[0]
    neighbours = [key for key in own_keys() if key.rpartition(".")[0] == section and section]
    longer = [key for key in neighbours if {*last.split("_")} <= {*key.rpartition(".")[2].split("_")}]
    if longer:
        return f"Did you mean '{longer[0]}'?" if len(longer) == 1 else f"Choose one of: {', '.join(longer)}."
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
            if (near := nearest(part, siblings)) is None:
                return None
            corrected = ".".join([*parts[:index], near, *parts[index + 1 :]])
            return corrected if corrected in own_keys() or open_section(corrected) else None
    return None
