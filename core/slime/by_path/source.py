"""What a file or a module says of the function or class that a path names, without being run."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path

from slime.errors import SlimeError, did_you_mean, nearest

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


_NO_FUNCTION = (ast.Constant, ast.JoinedStr, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.Compare)
"""Expressions whose value cannot be called."""


@dataclass(frozen=True)
class Parameters:
    """Those of a function: their names, those without a default, and whether it takes any other."""

    names: Sequence[str]
    required: Sequence[str]
    takes_any: bool = False


def examine(path: str, sha256: str | None, key: str) -> Node | None:
    """The function or class of that path as its file writes it, which is not run; None of what is not seen so.

    Raises:
        SlimeError: there is none, with the nearest; or the file is not the one of the digest.
    """
    where, name = parts(path, key)
    own = file_of(where)
    if own is None and (where.endswith(".py") or "/" in where):
        raise no_file(where, key)
    if (file := own or module_file(where, key)) is None:
        return None
    tree = _tree(file, key)
    named = _named(tree)
    # An installed module may also make its names while it is imported.
    made = rf"\b({name}|__getattr__|sys\.modules)\b|import \*"
    if name not in named and (own or not re.search(made, file.read_text(encoding="utf-8"))):
        names = [known for known in named if not known.startswith("_")]
        todo = did_you_mean(name, names) if names else "Define one there."
        raise SlimeError(f"there is no function '{name}' in {own or where}", where=key, todo=todo)
    if own and (problem := import_problem(own, tree, key)):
        raise problem
    if own and sha256 is not None and sha256 != digest(own):
        option = arguments_key(key).replace(".arguments", ".sha256")
        todo = f"Put it back, or take it as it is with {option}=null."
        raise SlimeError(f"{own} was changed: it is not the file of the recorded sha256", where=key, todo=todo)
    return named.get(name)


def parts(path: str, key: str) -> tuple[str, str]:
    """The file or module of a path, and the name in it. Raises SlimeError: it names none."""
    where, _, name = path.rpartition(":")
    if not where or not name.isidentifier():
        file = path if path.endswith(".py") else "my_file.py"
        todo = f"Write FILE.py:FUNCTION, for instance {key}={file}:{name if name.isidentifier() else 'score'}."
        raise SlimeError(f"'{path}' names no function", where=key, todo=todo)
    return where, name


def file_of(where: str) -> Path | None:
    path = Path(where).expanduser()
    return path.absolute() if path.is_file() else None


def no_file(where: str, key: str) -> SlimeError:
    path = Path(where).expanduser().absolute()
    match = nearest(path.name, [each.name for each in path.parent.glob("*.py")])
    return SlimeError(
        f"there is no file {path}", where=key, todo=f"Did you mean '{match}'?" if match else "Correct the path."
    )


def digest(file: Path) -> str:
    import hashlib  # here, because it loads OpenSSL

    return hashlib.sha256(file.read_bytes()).hexdigest()


def _tree(file: Path, key: str) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise SlimeError(f"{file} is not Python: {error}", where=key, todo="Correct that file.") from error


def members(node: ast.ClassDef) -> Iterator[str]:
    """Names that the body of a class defines."""
    for each in node.body:
        match each:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name
            case ast.Assign(targets=targets):
                yield from (target.id for target in targets if isinstance(target, ast.Name))


def _named(tree: ast.Module) -> dict[str, Node | None]:
    """Names that a file defines or imports at its top; None for what is no function or class to be seen."""
    found: dict[str, Node | None] = {}
    for node in tree.body:
        if isinstance(node, Node):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name, None) for alias in node.names)
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            found.update(dict.fromkeys(names))
            if isinstance(node.value, _NO_FUNCTION):
                found = {name: seen for name, seen in found.items() if name not in names}
    return found


def parameters_in(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Parameters:
    """Those of a function that is not imported."""
    given = node.args
    positional = [argument.arg for argument in [*given.posonlyargs, *given.args]]
    required = positional[: len(positional) - len(given.defaults)]
    required += [one.arg for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    return Parameters(positional + [one.arg for one in given.kwonlyargs], required, bool(given.kwarg))


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
    installed, or a relative one of what does not stand beside it."""
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            beside = [node.module] if node.module else [alias.name for alias in node.names]
            if node.level == 1 and all(_is_beside(file, name.partition(".")[0]) for name in beside):
                continue
            names = f"{'.' * node.level}{node.module or ''}"
            what = f"{file} cannot be imported at line {node.lineno}: 'from {names} import'"
            if node.level > 1:
                todo = f"Write 'from {node.module or 'its_name'} import ...': files beside it are found by their names."
                return SlimeError(f"{what} needs a package around it", where=key, todo=todo)
            todo = did_you_mean(beside[0], [each.stem for each in file.parent.glob("*.py") if each != file])
            return SlimeError(f"{what} finds no such file beside it", where=key, todo=todo)
        for name in _modules_in(node):
            top, _, inside = name.partition(".")
            if not _is_beside(file, top) and (
                _spec(top) is None or (top == "slime" and inside and _spec(name) is None)
            ):
                missing = name if top == "slime" else top
                what = (
                    f"{file} cannot be imported at line {node.lineno}: ModuleNotFoundError: No module named '{missing}'"
                )
                todo = "Correct it, or install what it imports."
                if top == "slime":
                    todo = "THUDM/slime is another project of this name; docs/coming-from.md says what stands for it."
                return SlimeError(what, where=key, todo=todo)
    return None


def _is_beside(file: Path, top: str) -> bool:
    return any((file.parent / each).exists() for each in (top, f"{top}.py"))


def _modules_in(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []


def _spec(name: str):  # type: ignore[no-untyped-def]  # a ModuleSpec, found without importing anything but slime's own
    if name in sys.modules:
        return getattr(sys.modules[name], "__spec__", None) or find_spec("sys")
    try:
        return find_spec(name)
    except (ImportError, ValueError):
        return None


def _modules(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    endings = tuple(all_suffixes())
    return [each for each in folder.iterdir() if each.is_dir() or each.name.endswith(endings)]


def path_key(home: str) -> str:
    """The key of the path among options under the key `home`, as a user writes it."""
    short = {"algo.advantage_options": "algo.advantage_path"}
    return short.get(home, f"{home.removesuffix('.options')}.path")


def arguments_key(key: str) -> str:
    """The key of further arguments, beside the path under `key`."""
    long = {"algo.advantage_path": "algo.advantage_options", "observe.trackers.path": "observe.trackers.function"}
    section = long.get(key, key.removesuffix(".path"))
    is_short = section.count(".") == 0 or section == "rollout.program"
    return f"{section}.options.arguments" if is_short else f"{section}.arguments"
