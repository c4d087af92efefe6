"""Imports of a reward's file or module, looked at without running it."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path

from slime.errors import SlimeError, nearest


def module_file(name: str, key: str) -> Path | None:
    """The source of an installed module; None where it has none, as one in C.

    Raises:
        SlimeError: there is no such module.
    """
    top, *inside = name.split(".")
    spec = _spec(top)
    if spec is None:
        todo = "Write FILE.py:FUNCTION, or install the module."
        if match := nearest(top, [path.stem for path in Path().glob("*.py")]):
            todo = f"Write {match}.py:FUNCTION for the file in this folder, or install the module."
        raise SlimeError(f"there is no module '{name}'", where=key, todo=todo)
    if not inside:
        return Path(spec.origin) if spec.origin and spec.origin.endswith(".py") else None
    places = [Path(place) for place in spec.submodule_search_locations or ()]
    for part in inside:
        found = [path for place in places for path in _modules(place) if path.name.partition(".")[0] == part]
        if not found:
            known = {path.name.partition(".")[0] for place in places for path in _modules(place)}
            match = nearest(part, known)
            todo = f"Did you mean '{match}'?" if match else "Name a module that is installed."
            raise SlimeError(f"there is no module '{name}': '{part}' is not there", where=key, todo=todo)
        places = [path for path in found if path.is_dir()]
    sources = [*(path for path in found if path.suffix == ".py"), *(place / "__init__.py" for place in places)]
    return next((path for path in sources if path.is_file()), None)


def import_problem(file: Path, tree: ast.Module, key: str) -> SlimeError | None:
    """The first import at a file's top, not in a `try` or under an `if`, that cannot work: of a package that is not
    installed, or a relative one."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            names = f"{'.' * node.level}{node.module or ''}"
            todo = f"Write 'from {node.module or 'its_name'} import ...': files beside it are found by their names."
            what = f"{file} cannot be imported at line {node.lineno}: 'from {names} import' needs a package around it"
            return SlimeError(what, where=key, todo=todo)
        for name in _tops(node):
            if _spec(name) is None and not any((file.parent / each).exists() for each in (name, f"{name}.py")):
                fault = f"ModuleNotFoundError: No module named '{name}'"
                what = f"{file} cannot be imported at line {node.lineno}: {fault}"
                return SlimeError(what, where=key, todo="Correct it, or install what it imports.")
    return None


def _tops(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        yield node.module.partition(".")[0]


def _spec(top: str):  # type: ignore[no-untyped-def]  # a ModuleSpec, found without importing anything
    if top in sys.modules:
        return getattr(sys.modules[top], "__spec__", None) or find_spec("sys")
    try:
        return find_spec(top)
    except (ImportError, ValueError):
        return None


def _modules(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    endings = tuple(all_suffixes())
    return [each for each in folder.iterdir() if each.is_dir() or each.name.endswith(endings)]
