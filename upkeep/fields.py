"""Writes the table of Megatron-core's and SGLang's fields from the installed sources: `python upkeep/fields.py`.

The sources are parsed, not imported: the table has types in words, the values that YAML may give where these are no
scalars, and lists of choices by their values.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import sys
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from slime.config.passthrough import DISTRIBUTION, SOURCES, TABLE
from upkeep.annotations import in_words, takes


def read() -> dict[str, Any]:
    """The table of the installed versions, see `slime.config.passthrough.TABLE`."""
    return {
        "versions": {name: version(name) for name in DISTRIBUTION.values()},
        "sections": {section: dict(_fields(section)) for section in SOURCES},
    }


def _fields(section: str) -> Iterator[tuple[str, dict[str, Any]]]:
    package, classes = SOURCES[section]
    for file, name in classes:
        yield from _read_class(_installed(package) / file, name)


def _installed(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"{DISTRIBUTION[package]} is installed where the table is made"
    assert spec.submodule_search_locations, f"{package} is a package"
    return Path(next(iter(spec.submodule_search_locations)))


@functools.cache
def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_bytes())


def _read_class(file: Path, name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    module = _parse(file)
    body = next(node.body for node in module.body if isinstance(node, ast.ClassDef) and node.name == name)
    constants = _constants(module)
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id[0] != "_":
            yield node.target.id, _field(node.annotation, constants)


def _field(annotation: ast.expr, constants: Mapping[str, list[Any]]) -> dict[str, Any]:
    """Unwrap SGLang's `A[type, "help"]` and `A[type, Arg(choices=...)]`."""
    if not (isinstance(annotation, ast.Subscript) and ast.unparse(annotation.value) == "A"):
        return _type(annotation)
    assert isinstance(annotation.slice, ast.Tuple), "Annotated takes a type and metadata"
    kind, metadata = annotation.slice.elts[:2]
    keywords = metadata.keywords if isinstance(metadata, ast.Call) else []
    choices = next((keyword.value for keyword in keywords if keyword.arg == "choices"), None)
    values = _literals(choices, constants) if choices is not None else None
    return _type(kind) | ({} if values is None else {"choices": values})


def _type(annotation: ast.expr) -> dict[str, Any]:
    """`{"type": words}`, with what it takes where the words do not name it."""
    kinds, words = takes(annotation), in_words(annotation)
    if not kinds:
        return {"type": ast.unparse(annotation), "takes": []}
    return {"type": words} if words.split(" or ") == kinds else {"type": words, "takes": kinds}


def _constants(module: ast.Module) -> dict[str, list[Any]]:
    """Module-level names bound to literal lists of choices."""
    constants: dict[str, list[Any]] = {}
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values = _literals(node.value, constants)
            if values is not None:
                constants[node.targets[0].id] = values
    return constants


def _literals(node: ast.expr, constants: Mapping[str, list[Any]]) -> list[Any] | None:
    """The values of a literal list, tuple or set, or of a name bound to one; None for anything computed."""
    if isinstance(node, ast.Name):
        return constants.get(node.id)
    if not isinstance(node, ast.List | ast.Tuple | ast.Set):
        return None
    if not all(isinstance(item, ast.Constant) for item in node.elts):
        return None
    return [ast.literal_eval(item) for item in node.elts]


def to_text(table: Mapping[str, Any]) -> str:
    """The table as JSON, a line a field, so that an upgrade can be read as a difference."""
    sections = ",\n".join(
        f" {json.dumps(section)}: {{\n"
        + ",\n".join(f"  {json.dumps(name)}: {json.dumps(field)}" for name, field in fields.items())
        + "\n }"
        for section, fields in table["sections"].items()
    )
    return f'{{"versions": {json.dumps(table["versions"])},\n"sections": {{\n{sections}\n}}}}\n'


def main() -> int:
    TABLE.write_text(to_text(read()), encoding="utf-8")
    print(TABLE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
