"""Types as they are written in somebody else's source: read with `ast`, never imported."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

DTYPES = ("fp32", "bf16", "fp16")
"""Values of a `torch.dtype` field, by Megatron-LM's names (`slime.train.settings` turns them into dtypes)."""

_SCALARS: Mapping[str, type | tuple[type, ...]] = {"bool": bool, "int": int, "float": (int, float), "str": str}
_CONTAINERS: Mapping[str, type[list[Any]] | type[dict[str, Any]]] = {
    "list": list,
    "tuple": list,
    "set": list,
    "dict": dict,
}


def accepts(annotation: ast.expr, value: Any) -> bool:
    """Whether a YAML value may stand in a field annotated so (`Optional[int]`, `Literal["a", "b"]`, ...).

    An annotation that is not a plain value (a function, another class) accepts nothing.
    """
    if isinstance(annotation, ast.Constant):
        return value is None and annotation.value is None
    if isinstance(annotation, ast.BinOp):
        return accepts(annotation.left, value) or accepts(annotation.right, value)
    name = _name(annotation)
    if name in _SCALARS:
        return isinstance(value, _SCALARS[name]) and (name == "bool" or not isinstance(value, bool))
    if name == "dtype":
        return value in DTYPES
    if name == "Any":
        return True
    return _accepts_generic(name, _arguments(annotation), value)


def _accepts_generic(name: str, arguments: list[ast.expr], value: Any) -> bool:
    if name in ("Optional", "Union"):
        optional = name == "Optional" and value is None
        return optional or any(accepts(argument, value) for argument in arguments)
    if name == "Literal":
        return any(isinstance(choice, ast.Constant) and choice.value == value for choice in arguments)
    container = _CONTAINERS.get(name.lower())
    if container is None or not isinstance(value, container):
        return False
    if isinstance(value, dict):
        return len(arguments) < 2 or all(accepts(arguments[1], item) for item in value.values())
    items = [argument for argument in arguments if not _is_ellipsis(argument)]
    return not items or all(any(accepts(argument, item) for argument in items) for item in value)


def in_words(annotation: ast.expr) -> str:
    """The annotation for a message: "int or null", "one of full, selective"."""
    name, arguments = _name(annotation), _arguments(annotation)
    if name == "Optional":
        return f"{in_words(arguments[0])} or null"
    if name == "Union":
        return " or ".join(map(in_words, arguments))
    if name == "Literal":
        return "one of " + ", ".join(str(ast.literal_eval(choice)) for choice in arguments)
    if name == "dtype":
        return "one of " + ", ".join(DTYPES)
    return ast.unparse(annotation)


def is_value(annotation: ast.expr) -> bool:
    """Whether anything that YAML can say fits the annotation (a `Callable` field takes code, not a value)."""
    known = {*_SCALARS, "Optional", "Union", "Literal", "dtype", "Any"}
    name = _name(annotation)
    if name in ("Optional", "Union"):
        return any(map(is_value, _arguments(annotation)))
    return isinstance(annotation, ast.BinOp | ast.Constant) or name in known or name.lower() in _CONTAINERS


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


def _is_ellipsis(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...
