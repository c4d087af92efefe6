"""Types as they are written in somebody else's source: in words, and as the values that YAML may give."""

from __future__ import annotations

import ast
from typing import Any

_SCALARS = ("bool", "int", "float", "str", "dtype", "any")
_LISTS = ("list", "tuple", "set")


def takes(annotation: ast.expr) -> list[Any]:
    """The alternatives of `slime.config.passthrough.fits`; empty of what is no plain value, such as a function."""
    if isinstance(annotation, ast.Constant):
        return ["null"] if annotation.value is None else []
    if isinstance(annotation, ast.BinOp):
        return [*takes(annotation.left), *takes(annotation.right)]
    name, arguments = _name(annotation).lower(), _arguments(annotation)
    if name in _SCALARS:
        return [name]
    if name in ("optional", "union"):
        found = [kind for argument in arguments for kind in takes(argument)]
        return [*found, "null"] if name == "optional" and found else found
    if name == "literal":
        return [{"one of": [ast.literal_eval(choice) for choice in arguments]}]
    if name in _LISTS:
        items = [argument for argument in arguments if ast.unparse(argument) != "..."]
        return [{"list": [kind for item in items for kind in takes(item)] if items else ["any"]}]
    return [{"dict": takes(arguments[1]) if len(arguments) > 1 else ["any"]}] if name == "dict" else []


def in_words(annotation: ast.expr) -> str:
    """The annotation for a message: "int or null", "one of full, selective"."""
    name, arguments = _name(annotation), _arguments(annotation)
    if name == "Optional":
        return f"{in_words(arguments[0])} or null"
    if name == "Union":
        return " or ".join(map(in_words, arguments))
    if name == "Literal":
        return "one of " + ", ".join(str(ast.literal_eval(choice)) for choice in arguments)
    return "one of fp32, bf16, fp16" if name == "dtype" else ast.unparse(annotation)


def _name(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Subscript):
        return _name(annotation.value)
    if isinstance(annotation, ast.Attribute):
        return annotation.attr
    return annotation.id if isinstance(annotation, ast.Name) else ""


def _arguments(annotation: ast.expr) -> list[ast.expr]:
    if not isinstance(annotation, ast.Subscript):
        return []
    inside = annotation.slice
    return list(inside.elts) if isinstance(inside, ast.Tuple) else [inside]
