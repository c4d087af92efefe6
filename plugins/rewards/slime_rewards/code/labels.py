"""Labels of the reward `code`: the tests that they hold, in slime's form and in those of published sets.

A key that is not understood is refused by name: a test that is read wrongly is a 0 for every right program.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from slime.errors import nearest
from slime_rewards.code.asserts import Case, asserted

NAMES = ("function", "fn_name", "func_name", "function_name", "entry_point")
"""Keys that name a function."""
SEVERAL = ("ground_truth", "tests", "test_cases", "testcases", "input_output", "public_test_cases", "public_tests",
           "official_tests", "private_test_cases", "test_list", "challenge_test_list", "test")  # fmt: skip
"""Keys whose value has tests of its own: JSON, its text, or asserts."""
_SETUP = ("test_setup_code", "test_imports", "setup_code")
_KIND, _ABOUT = ("type", "testtype", "test_type"), ("language", "metadata", "style")
_PAIRS = (("inputs", "outputs"), ("input", "output"))
KNOWN = {*NAMES, *SEVERAL, *_SETUP, *_KIND, *_ABOUT, *(key for pair in _PAIRS for key in pair)}
_STDIN = {"stdin", "stdin_stdout", "stdio", "standard_input", "io"}
_CALLS = {"functional", "function_call", "function", "call_based", "call"}
_PYTHON = {"python", "python3", "py", "python 3"}
_PACKED = re.compile(r"[A-Za-z0-9+/=\s_-]{40,}")


class _Told(NamedTuple):
    """Facts of a label that hold for all its tests."""

    name: str | None = None
    setup: str = ""
    published: bool = False


def cases_of(label: Any) -> list[Case]:
    """The tests of a label, as JSON or its text.

    Raises:
        ValueError: it has none, or it has what is not understood; says what.
    """
    try:
        cases = [*_cases(label, _Told())]
    except (SyntaxError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {error}") from error
    if not cases:
        raise ValueError("it has no tests")
    return cases


def _cases(value: Any, told: _Told) -> Iterator[Case]:
    if isinstance(value, str):
        value = _read(value)
    values = [value] if isinstance(value, Mapping) else value
    if isinstance(values, list) and values and all(isinstance(each, str) for each in values):
        for each in values:
            yield from _asserted(each, told)
    elif isinstance(values, list) and all(isinstance(each, Mapping) for each in values):
        for each in values:
            yield from _of_mapping(each, told)
    else:
        raise ValueError(f"{_shown(value)} is neither inputs and outputs, nor a list of asserts")


def _read(text: str) -> Any:
    """The value of a text: JSON, a literal of Python, or asserts, which stay a text, in a list."""
    try:
        found = json.loads(text)
    except ValueError as error:
        if re.search(r"^\s*assert\b", text, re.M):
            return [text]
        if _PACKED.fullmatch(text):
            what = "its tests are packed, and unpacking them could run code (pickle)"
            raise ValueError(f"{what}: take the public ones, or unpack them into inputs and outputs") from error
        if text.lstrip()[:1] in ("{", "["):
            return ast.literal_eval(text.strip())
        raise ValueError(f"{_shown(text)} is neither JSON nor asserts") from error
    if isinstance(found, str) and found == text:
        raise ValueError(f"{_shown(text)} has no tests")
    return found


def _of_mapping(tests: Mapping[str, Any], told: _Told) -> Iterator[Case]:
    for key in tests:
        if key not in KNOWN:
            near = nearest(str(key), sorted(KNOWN))
            todo = f"Did you mean '{near}'?" if near else "Take it out if its tests hold without it."
            raise ValueError(f"it has the key {str(key)!r:.40}, which is not known. {todo}")
    if (language := tests.get("language")) is not None and str(language).lower() not in _PYTHON:
        raise ValueError(f"its language is {language!r:.40}, and programs are run as Python")
    kinds = {str(tests[key]).lower() for key in _KIND if tests.get(key) is not None}
    if strange := kinds - _STDIN - _CALLS:
        raise ValueError(f"its kind of test is {min(strange)!r:.40}, neither stdin nor functional")
    named = {key: tests[key] for key in NAMES if tests.get(key) not in (None, "")} | _of_metadata(tests)
    if len({str(name) for name in named.values()}) > 1:
        raise ValueError(f"it names several functions: {', '.join(map(str, named.values()))}")
    setup = "\n".join(_code(tests[key], key) for key in _SETUP if tests.get(key))
    if named:
        key, name = next(iter(named.items()))
        told = told._replace(name=_name(name), published=key != "function")
    told = told._replace(setup="\n".join(filter(None, (told.setup, setup))))
    if kinds and kinds <= _STDIN:
        told = told._replace(name=None)
    elif kinds and told.name is None:
        raise ValueError("its tests call a function, which it does not name: add fn_name")
    found = [key for key in SEVERAL if tests.get(key) not in (None, "", [], {})]
    pairs = [pair for pair in _PAIRS if any(tests.get(key) is not None for key in pair)]
    for inputs, outputs in pairs:
        if lacking := [key for key in (inputs, outputs) if tests.get(key) is None]:
            raise ValueError(f"it has no '{lacking[0]}'")
        yield from _of_pair(tests[inputs], tests[outputs], told, is_one=inputs == "input")
    for key in found:
        yield from _cases(tests[key], told)


def _of_metadata(tests: Mapping[str, Any]) -> dict[str, Any]:
    about = tests.get("metadata")
    about = json.loads(about) if isinstance(about, str) and about.strip() else about
    name = about.get("func_name") or about.get("fn_name") if isinstance(about, Mapping) else None
    return {"func_name of metadata": name} if name else {}


def _name(name: Any) -> str:
    text = str(name).removeprefix("Solution.").removeprefix("Solution().")
    if not text.isidentifier():
        raise ValueError(f"{name!r:.60} is no name of a function")
    return text


def _code(value: Any, key: str) -> str:
    lines = value if isinstance(value, list) else [value]
    if not all(isinstance(line, str) for line in lines):
        raise ValueError(f"'{key}' is no code")
    return "\n".join(lines)


def _of_pair(inputs: Any, outputs: Any, told: _Told, *, is_one: bool) -> Iterator[Case]:
    """Tests of two lists; `is_one`: one test, unless both are lists of texts for standard input."""
    if is_one and not (told.name is None and isinstance(inputs, list) and isinstance(outputs, list)):
        inputs, outputs = [inputs], [outputs]
    if not isinstance(inputs, list) or not isinstance(outputs, list):
        raise ValueError(f"its inputs and outputs are no lists: {_shown(inputs)}, {_shown(outputs)}")
    if len(inputs) != len(outputs):
        raise ValueError(f"it has {len(inputs)} inputs and {len(outputs)} outputs")
    if told.name is None:
        for given, wanted in zip(inputs, outputs, strict=True):
            yield Case(_text(given, "input"), None, _text(wanted, "output"), setup=told.setup)
        return
    is_wrapped = told.published and all(isinstance(each, list) and len(each) == 1 for each in outputs)
    for given, wanted in zip(inputs, outputs, strict=True):
        arguments = _arguments(given)
        if isinstance(given, str):
            wanted = _value(wanted) if isinstance(wanted, str) else wanted
        elif told.published:
            arguments = [_with_numbers(each) for each in arguments]
        call = f"{told.name}({', '.join(map(_source, arguments))})"
        inner = tuple(wanted) if is_wrapped and isinstance(wanted, list) else ()
        yield Case("", call, wanted, (told.name,), told.setup, inner=inner)


def _text(value: Any, what: str) -> str:
    """Standard input or output: text, lines, or a number that is printed."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "\n".join(value)
    if what == "output" and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    todo = "name the function that takes it (fn_name)" if isinstance(value, list) else "write it as text"
    raise ValueError(f"an {what} is {_shown(value)}, no text: {todo}")


def _arguments(given: Any) -> list[Any]:
    """Arguments of a call: a list, or a text with one on each line."""
    if isinstance(given, list):
        return given
    if isinstance(given, str):
        return [_value(line) for line in given.splitlines() if line.strip()]
    raise ValueError(f"an input is {_shown(given)}, no list of arguments")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text.strip())
        except (ValueError, SyntaxError) as error:
            raise ValueError(f"{_shown(text)} is no value of JSON") from error


def _with_numbers(argument: Any) -> Any:
    """A dictionary with the whole numbers as keys that it had before it became JSON, as published graders take it."""
    is_one = isinstance(argument, dict) and argument and all(re.fullmatch(r"-?\d+", str(key)) for key in argument)
    return {int(key): value for key, value in argument.items()} if is_one else argument


def _source(value: Any) -> str:
    """A value of JSON as Python."""
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            raise ValueError("an argument is NaN")
        return "1e999" if value > 0 else "-1e999"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(_source, value))
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_source(key)}: {_source(each)}' for key, each in value.items())}}}"
    return repr(value)


def _asserted(source: str, told: _Told) -> Iterator[Case]:
    setup, tests = asserted(source, told.name)
    whole = "\n".join(filter(None, (told.setup, setup)))
    for test in tests:
        yield test._replace(setup=whole)


def _shown(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"
