"""The function or class of a path, imported, and matched with what it is called with.

A file is imported beside its folder: it finds the files there by their names, and by relative imports.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
import traceback
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

from slime.by_path.source import (
    Node,
    Parameters,
    arguments_key,
    digest,
    examine,
    file_of,
    members,
    no_file,
    parameters_in,
    parts,
    path_key,
)
from slime.errors import SlimeError, did_you_mean
from slime.imports import import_file
from slime.time_limit import FAILURES, failure


@dataclass(frozen=True)
class Form:
    """What functions of a kind get, by the names of their parameters.

    Attributes:
        given: names.
        unnamed: which of them a function gets that calls all of its required parameters otherwise, in their order.
        methods: of a class that may stand in place of a function; none: no class may.
    """

    given: Collection[str]
    unnamed: Sequence[str] = ()
    methods: Sequence[str] = ()

    def match(self, found: Parameters, path: str, arguments: Mapping[str, Any], key: str) -> dict[str, str]:
        """Parameter -> the name of what it gets.

        Raises:
            SlimeError: a parameter gets nothing, or one of `arguments` has no parameter; names the nearest.
        """
        own = [name for name in found.names if name in self.given and name not in arguments]
        others = [name for name in found.required if name not in own and name not in arguments]
        if others and not own and len(others) == len(self.unnamed):
            return dict(zip(others, self.unnamed, strict=True))
        for name in others:
            todo = f"It gets what it names of {', '.join(self.given)}. {did_you_mean(name, self.given)}"
            what, home = f"{path} takes '{name}', which nobody gives it", arguments_key(key)
            raise SlimeError(what, where=key, todo=f"{todo} Or set {home}.{name}=...")
        if "args" not in own:
            check_arguments(found, path, arguments, key, self.given)
        return {name: name for name in own}


@dataclass
class PathOptions:
    """The options of a function that its path names."""

    path: str
    """FILE.py:FUNCTION, or MODULE:FUNCTION of what is installed. A relative file is looked for where slime starts."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """More keywords of the function, or those of the class."""
    sha256: str | None = None
    """Of the file; filled in, so that a run is not continued with another function. null takes the file as it is."""

    form: ClassVar[Form] = Form(())
    everywhere: ClassVar[bool] = False  # processes in other folders import it, too

    @classmethod
    def complete(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with the digest of the file, where there is one to read."""
        path = options.get("path")
        if not isinstance(path, str) or not (file := file_of(path.rpartition(":")[0])):
            return dict(options)
        found = {"sha256": digest(file)} if options.get("sha256") is None else {}
        return {**options, **found} | ({"path": f"{file}:{path.rpartition(':')[2]}"} if cls.everywhere else {})

    @classmethod
    def problems(cls, options: Mapping[str, Any], home: str) -> Iterator[SlimeError]:
        """What is wrong with them, which stand under the key `home`, as far as it is seen without running the file."""
        path, key = options["path"], path_key(home)
        try:
            node = examine(path, options.get("sha256"), key)
            if node is not None:
                cls.check(node, path, options.get("arguments") or {}, key)
        except SlimeError as problem:
            yield problem

    @classmethod
    def check(cls, node: Node, path: str, arguments: Mapping[str, Any], key: str) -> None:
        """Raises SlimeError: the function cannot be called so, or the class lacks a method."""
        if not isinstance(node, ast.ClassDef):
            cls.form.match(parameters_in(node), path, arguments, key)
        elif not node.bases:
            _require_methods(cls.form, {*members(node)}, path, key)


class Own:
    """A user's function, or the object that a class of theirs makes.

    Attributes:
        made: the object; None of a function.

    Raises:
        SlimeError: there is none, it cannot be imported, made or called, or is not the file of the digest.
    """

    def __init__(self, options: PathOptions, key: str) -> None:
        self.path, self.key, self.arguments = options.path, key, options.arguments
        found, form = imported(options.path, options.sha256, key), options.form
        self.made: Any = None
        if inspect.isclass(found):
            with self.told():
                self.made = found(**options.arguments)
            _require_methods(form, dir(self.made), options.path, key)
            return
        self._function, parameters = found, parameters_of(found)
        self._names = form.match(parameters, options.path, options.arguments, key)
        self.takes = {*self._names.values()}
        own = {
            name: each for name, each in options.arguments.items() if parameters.takes_any or name in parameters.names
        }
        self._keywords = own

    def call(self, given: Mapping[str, Any]) -> Any:
        """What the function returns of what it names. Raises SlimeError: it raised; with the line of its file."""
        with self.told():
            return self._function(**{name: given[of] for name, of in self._names.items()}, **self._keywords)

    def watched(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method of the object, of which what it raises is told as of a function."""

        def called(*given: Any) -> Any:
            with self.told():
                return method(*given)

        return called

    def returned(self, answer: Any, wanted: str) -> SlimeError:
        """The error of a function that returned something else."""
        return SlimeError(f"{self.path} returned {answer!r:.80}, not {wanted}", where=self.key, todo="Correct it.")

    @contextmanager
    def told(self) -> Iterator[None]:
        """Context in which their code runs: what it raises becomes a `SlimeError` with the line of their file."""
        try:
            yield
        except SlimeError:
            raise
        except FAILURES as error:
            where = Path(self.path.rpartition(":")[0]).name
            frames = traceback.extract_tb(error.__traceback__)
            theirs = [each for each in frames if Path(each.filename).name == where] or frames
            what = f"{self.path} raised {failure(error)} ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})"
            raise SlimeError(what, where=self.key, todo="Correct it.") from error


def imported(path: str, sha256: str | None, key: str) -> Callable[..., Any]:
    """The function or class of that path.

    Raises:
        SlimeError: there is none, or its file cannot be imported or is not the one of the digest.
    """
    examine(path, sha256, key)
    where, name = parts(path, key)
    found = getattr(module_of(where, key), name, None)
    if not callable(found):
        raise SlimeError(f"'{name}' in {where} is no function", where=key, todo="Name a function.")
    called: Callable[..., Any] = found
    return called


def parameters_of(function: Callable[..., Any]) -> Parameters:
    parameters = inspect.signature(function).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    takes_any = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return Parameters(
        [each.name for each in named], [each.name for each in named if each.default is each.empty], takes_any
    )


def check_arguments(
    found: Parameters, path: str, arguments: Mapping[str, Any], key: str, given: Collection[str] = ()
) -> None:
    """Raises SlimeError: one of `arguments` is no parameter."""
    for name in arguments:
        if name not in found.names and not found.takes_any:
            todo = did_you_mean(name, [each for each in found.names if each not in given])
            raise SlimeError(f"{path} takes no '{name}'", where=arguments_key(key), todo=todo)


def _require_methods(form: Form, have: Collection[str], path: str, key: str) -> None:
    if not form.methods:
        raise SlimeError(f"{path} is a class, not a function", where=key, todo="Name a function.")
    for name in form.methods:
        if name not in have:
            todo = f"It has {', '.join(form.methods)}: add that, or name a function."
            raise SlimeError(f"class {path} has no '{name}'", where=key, todo=todo)


def module_of(where: str, key: str) -> ModuleType:
    """The module of a file, which is imported once a process, or the installed one of that name.

    Raises:
        SlimeError: there is none, or it cannot be imported; with the line.
    """
    if file := file_of(where):
        return _module(file, digest(file), key)
    if where.endswith(".py"):
        raise no_file(where, key)
    return _installed(where, key)


def _installed(where: str, key: str) -> ModuleType:
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        todo = "Write FILE.py:FUNCTION, or install the module."
        raise SlimeError(f"there is no module '{where}'", where=key, todo=todo) from error
    except FAILURES as error:
        what = f"module '{where}' cannot be imported: {failure(error)}"
        raise SlimeError(what, where=key, todo="Correct it, or install what it imports.") from error


@cache
def _module(file: Path, _: str, key: str) -> ModuleType:
    """The module of a file with that digest; once a process, so that what it keeps is shared."""
    sys.path.append(str(file.parent))
    try:
        # A file may be called as a module of Python is, and as one of another folder.
        return import_file(file, f"slime_file_{file.stem}_{zlib.crc32(bytes(file)):x}", in_folder=True)
    except FAILURES as error:
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        at = f" at line {lines[-1]}" if lines else ""
        what = f"{'it' if key.endswith(file.name) else file} cannot be imported{at}: {failure(error)}"
        raise SlimeError(what, where=key, todo="Correct it, or install what it imports.") from error
