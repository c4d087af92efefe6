"""Reward `function`: a plain function of a file or a module, `reward.path=my_file.py:score`.

The function takes what it names: `response` (text), `label`, `messages` (of the prompt), `metadata` (the row's other
columns) or `sample` (all of it). It returns a number, true or false, or a `Verdict`. One that names `responses` or
`samples` judges all samples of a prompt together, and returns as many.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import numbers
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.machinery import all_suffixes
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from slime.errors import SlimeError, did_you_mean, nearest
from slime.imports import import_file
from slime.time_limit import FAILURES, failure
from slime.types import Sample, Verdict

GIVEN: Mapping[str, Callable[[Sample], Any]] = {
    "sample": lambda sample: sample,
    "response": lambda sample: sample.response,
    "label": lambda sample: sample.prompt.label,
    "messages": lambda sample: sample.prompt.messages,
    "metadata": lambda sample: sample.prompt.metadata,
}
"""Arguments that a function may ask for, by the names of its parameters."""
TOGETHER: Mapping[str, Callable[[Sequence[Sample]], Any]] = {
    "samples": list,
    "responses": lambda samples: [sample.response for sample in samples],
    "label": lambda samples: samples[0].prompt.label,
    "messages": lambda samples: samples[0].prompt.messages,
    "metadata": lambda samples: samples[0].prompt.metadata,
}
"""The same for a function that judges the samples of a prompt together: it names one of the first two."""
_ELSEWHERE = {
    "solution_str": "response",
    "ground_truth": "label",
    "extra_info": "metadata",
    "data_source": "metadata",
    "completion": "response",
    "completions": "responses",
    "prompts": "messages",
    "prompt": "messages",
    "solution": "label",
    "answer": "label",
    "response_str": "response",
}
"""Names of these in functions for verl and for TRL, and their names here."""
_PLURALS = ("samples", "responses")
_NO_FUNCTION = (ast.Constant, ast.JoinedStr, ast.Tuple, ast.List, ast.Set, ast.Dict, ast.UnaryOp, ast.Compare)
"""Expressions whose value cannot be called."""
_NAMES = dict.fromkeys([*GIVEN, *TOGETHER])
KEY = "reward.path"


@dataclass
class FunctionReward:
    path: str
    """FILE.py:FUNCTION, or MODULE:FUNCTION of what is installed. A relative file is looked for where slime starts."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """More keywords of the function."""
    sha256: str | None = None
    """Of the file; filled in, so that a run is not continued with another function. null takes the file as it is."""

    def __post_init__(self) -> None:
        examine(self.path, self.arguments, self.sha256)
        file, name = _parts(self.path)
        found = getattr(_imported(file), name, None)
        if not callable(found):
            raise SlimeError(f"'{name}' in {file} is no function", where=KEY, todo="Name a function.")
        self._function: Callable[..., Any] = found
        self._given = _parameters(found, self.path, self.arguments)
        if any(name in _PLURALS for name in self._given):
            self.score_group = self._score_group  # only then is it a `slime.contracts.GroupReward`

    def score(self, sample: Sample) -> Verdict:
        return self._verdict(self._answer({name: GIVEN[name](sample) for name in self._given}))

    def _score_group(self, samples: Sequence[Sample]) -> list[Verdict]:
        answers = self._answer({name: TOGETHER[name](samples) for name in self._given})
        if isinstance(answers, str | Mapping) or not hasattr(answers, "__len__") or len(answers) != len(samples):
            said = f"{self.path} returned {answers!r:.80}, not a list of {len(samples)}, one for each response"
            return [Verdict.error(said)] * len(samples)
        return [self._verdict(answer) for answer in answers]

    def _answer(self, given: Mapping[str, Any]) -> Any:
        answer = self._function(**given, **self.arguments)
        if inspect.iscoroutine(answer):
            import asyncio  # here, because importing a plugin is to be quick

            answer = asyncio.run(answer)
        return answer

    def _verdict(self, answer: Any) -> Verdict:
        if isinstance(answer, Verdict):
            return answer
        if isinstance(answer, Mapping) and _is_number(answer.get("score")):  # with parts, as verl's functions return
            parts = {str(key): float(value) for key, value in answer.items() if key != "score" and _is_number(value)}
            return Verdict.of(float(answer["score"]), **parts)
        if _is_number(answer):
            return Verdict.of(float(answer))
        what = f"{self.path} returned {answer!r:.80}, neither a number nor a Verdict"
        if isinstance(answer, Mapping):
            return Verdict.error(f"{what}; of an object the key 'score' is the value")
        return Verdict.error(what)

    @staticmethod
    def complete(options: Mapping[str, Any]) -> dict[str, Any]:
        """The options with the digest of the file, where there is one to read."""
        path = options.get("path")
        if options.get("sha256") is None and isinstance(path, str) and (file := _file(path.rpartition(":")[0])):
            return {**options, "sha256": _digest(file)}
        return dict(options)


def _is_number(value: Any) -> bool:
    """A number, or an array or tensor of no dimension."""
    has_dimensions = bool(getattr(value, "shape", ()))
    return isinstance(value, numbers.Real) or (hasattr(value, "__float__") and not has_dimensions)


def examine(path: str, arguments: Mapping[str, Any], sha256: str | None) -> None:
    """Check that there is such a function and that it can be called, without running the file.

    Raises:
        SlimeError: there is none; names the nearest. Or the file is not the one of the digest.
    """
    where, name = _parts(path)
    own = _file(where)
    if own is None and (where.endswith(".py") or "/" in where):
        raise SlimeError(f"there is no file {Path(where).absolute()}", where=KEY, todo="Correct the path.")
    if (file := own or module_file(where, KEY)) is None:
        return
    tree = _tree(file)
    functions = _functions(tree)
    # An installed module may also make its names while it is imported.
    made = rf"\b({name}|__getattr__|sys\.modules)\b|import \*"
    if name not in functions and (own or not re.search(made, file.read_text(encoding="utf-8"))):
        names = [known for known in functions if not known.startswith("_")]
        todo = did_you_mean(name, names) if names else "Define one there."
        raise SlimeError(f"there is no function '{name}' in {own or where}", where=KEY, todo=todo)
    if own and (problem := import_problem(own, tree, KEY)):
        raise problem
    if (node := functions.get(name)) is not None:
        _check_parameters(node, path, arguments)
    if own and sha256 is not None and sha256 != _digest(own):
        todo = "Put it back, or take it as it is with reward.options.sha256=null."
        raise SlimeError(f"{own} was changed: it is not the file of the recorded sha256", where=KEY, todo=todo)


def _tree(file: Path) -> ast.Module:
    try:
        return ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise SlimeError(f"{file} is not Python: {error}", where=KEY, todo="Correct that file.") from error


def _parts(path: str) -> tuple[str, str]:
    where, _, name = path.rpartition(":")
    if not where or not name.isidentifier():
        todo = "Write FILE.py:FUNCTION, for instance reward.path=my_file.py:score."
        raise SlimeError(f"'{path}' names no function", where=KEY, todo=todo)
    return where, name


def _file(where: str) -> Path | None:
    path = Path(where).expanduser()
    return path.absolute() if path.is_file() else None


def _digest(file: Path) -> str:
    import hashlib  # here, because it loads OpenSSL

    return hashlib.sha256(file.read_bytes()).hexdigest()


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef | None]:
    """Names that a file defines or imports at its top; None for what is not a function to be seen."""
    found: dict[str, ast.FunctionDef | ast.AsyncFunctionDef | None] = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found.update((alias.asname or alias.name, None) for alias in node.names)
        elif isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            found.update(dict.fromkeys(names))
            if isinstance(node.value, _NO_FUNCTION):
                found = {name: seen for name, seen in found.items() if name not in names}
    return found


def _check_parameters(node: ast.FunctionDef | ast.AsyncFunctionDef, path: str, arguments: Mapping[str, Any]) -> None:
    given = node.args
    positional = [argument.arg for argument in [*given.posonlyargs, *given.args]]
    required = positional[: len(positional) - len(given.defaults)]
    required += [one.arg for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True) if default is None]
    _require(positional + [one.arg for one in given.kwonlyargs], required, path, arguments, any_name=bool(given.kwarg))


def _parameters(function: Callable[..., Any], path: str, arguments: Mapping[str, Any]) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    named = [each for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)]
    any_name = any(each.kind is each.VAR_KEYWORD for each in parameters)
    required = [each.name for each in named if each.default is each.empty]
    _require([each.name for each in named], required, path, arguments, any_name=any_name)
    return [each.name for each in named if each.name in _NAMES and each.name not in arguments]


def _require(names: list[str], required: list[str], path: str, arguments: Mapping[str, Any], *, any_name: bool) -> None:
    alone = [name for name in names if name in GIVEN and name not in TOGETHER and name not in arguments]
    if alone and any(name in _PLURALS and name not in arguments for name in names):
        what = f"{path} takes '{alone[0]}' of one sample, and all samples of a prompt"
        raise SlimeError(what, where=KEY, todo=f"Leave out {alone[0]}, or {' and '.join(_PLURALS)}.")
    for name in required:
        if name not in _NAMES and name not in arguments:
            near = f"Call it {_ELSEWHERE[name]}." if name in _ELSEWHERE else did_you_mean(name, _NAMES)
            others = [f"{each} {_ELSEWHERE[each]}" for each in required if each in _ELSEWHERE and each not in arguments]
            if len(others) > 1:  # a function that was written for verl or TRL
                near = f"Call {', '.join(others)}."
            todo = f"It gets what it names of {', '.join(_NAMES)}. {near}"
            what = f"{path} takes '{name}', which nobody gives it"
            raise SlimeError(what, where=KEY, todo=f"{todo} Or set reward.options.arguments.{name}=...")
    for name in arguments:
        if name not in names and not any_name:
            todo = did_you_mean(name, [each for each in names if each not in _NAMES])
            raise SlimeError(f"{path} takes no '{name}'", where="reward.options.arguments", todo=todo)


def _imported(where: str) -> ModuleType:
    """The module of a file, whose folder is searched for what it imports; or the installed module."""
    file = _file(where)
    if file is None:
        try:
            return importlib.import_module(where)
        except ModuleNotFoundError as error:
            todo = "Write FILE.py:FUNCTION, or install the module."
            raise SlimeError(f"there is no module '{where}'", where=KEY, todo=todo) from error
    sys.path.append(str(file.parent))
    try:
        return import_file(file, f"slime_reward_{file.stem}")  # a file may be called as a module of Python is
    except FAILURES as error:
        import traceback

        traceback.print_exc()  # into the log of rewards
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        at = f" at line {lines[-1]}" if lines else ""
        what, todo = f"{file} cannot be imported{at}: {failure(error)}", "Correct it, or install what it imports."
        raise SlimeError(what, where=KEY, todo=todo) from error


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
