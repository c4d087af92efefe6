"""Reward `code`: Python in the answer against the tests of the label.

Labels: `{"inputs": [...], "outputs": [...]}`, texts for standard input and output; with `"function": name` the inputs
are lists of arguments and the outputs values; or a list of `assert f(...) == value`. Values are compared out of the
program's reach: an object that says to equal everything equals nothing.
"""

from __future__ import annotations

import ast
import json
import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from slime.reward.deadline import seconds_left
from slime.thinking import divided
from slime.types import Sample, Verdict

if TYPE_CHECKING:
    from slime_plugin_code.sandbox import Ended

_BLOCK = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)```", re.S)
_MOST_DEEP = 50
_SHORT, _LONGER = 1000, 8
"""The longest text of a value that is read: this many characters, and this many for each of the wanted value's."""
LOCAL = "local"
_OF_TIMEOUT = 0.8
"""Share of `reward.timeout_s` in which all programs of an answer end. The rest is for starts and ends of processes."""


class Case(NamedTuple):
    """Attributes:
    call: an expression; None: standard input and output are compared.
    """

    given: str
    call: str | None
    wanted: Any


@dataclass
class CodeReward:
    partial: bool = False
    """The reward is the share of tests that the program passes; else 1 if it passes all."""
    cpu_s: int = 5
    """Seconds of processor time for a test."""
    memory_mb: int = 512
    """MiB by which the program may grow."""
    max_tests: int = 20
    """The first tests of a row that are run."""
    sandbox: str = LOCAL
    """Where programs run: `local`, or the URL of a server of SandboxFusion's form, which bounds their memory itself."""
    unconfined: bool = False
    """Run programs on a machine that cannot confine them. They may then do all that this user may."""

    def score(self, sample: Sample) -> Verdict:
        from slime_plugin_code.sandbox import NotRunError  # here, because importing a plugin is to be quick

        try:
            cases = cases_of(sample.prompt.label)[: self.max_tests]
        except (ValueError, SyntaxError, RecursionError) as problem:
            return Verdict.error(f"the label has no tests: {problem}")
        code = program_of(sample.response)
        if code is None:
            return Verdict.of(0.0, tests_passed=0.0, out_of_time=0.0)
        passed, is_late, ends = 0, False, time.monotonic() + _OF_TIMEOUT * seconds_left()
        try:
            for number, case in enumerate(cases):
                if not self.partial and passed < number:
                    break
                if (left := ends - time.monotonic()) <= 0:
                    is_late = True
                    break
                ended = self._run(code, case, left)
                is_late |= ended.is_late
                passed += not ended.fault and _is_right(ended, case)
        except NotRunError as why:
            return Verdict.error(f"the program was not run: {why}")
        share = passed / len(cases)
        value = share if self.partial else float(share == 1)
        return Verdict.of(value, tests_passed=share, out_of_time=float(is_late))

    def _run(self, code: str, case: Case, most_s: float) -> Ended:
        from slime_plugin_code import remote, sandbox

        spec = sandbox.Spec(code, case.call, self.cpu_s, self.memory_mb, unconfined=self.unconfined, most_s=most_s)
        local = self.sandbox == LOCAL
        return sandbox.run(spec, case.given) if local else remote.run(self.sandbox, spec, case.given)


def program_of(response: str) -> str | None:
    """The last block of code behind the thinking; None where there is none."""
    found = _BLOCK.findall(divided(response)[1])
    code = found[-1] if found else None
    return None if code is None else code.encode(errors="replace").decode()


def cases_of(label: Any) -> list[Case]:
    """The tests of a label, as JSON or its text.

    Raises:
        ValueError: it has none, or they are not of the form above.
    """
    tests = json.loads(label) if isinstance(label, str) else label
    if isinstance(tests, Mapping) and isinstance(tests.get("inputs"), list) and isinstance(tests.get("outputs"), list):
        pairs, name = list(zip(tests["inputs"], tests["outputs"], strict=True)), tests.get("function")
        if name is None:
            cases = [Case(str(given), None, str(wanted)) for given, wanted in pairs]
        elif str(name).isidentifier() and all(isinstance(given, list) for given, _ in pairs):
            cases = [Case("", f"{name}({', '.join(map(repr, given))})", wanted) for given, wanted in pairs]
        else:
            raise ValueError("'function' is a name, and its inputs are lists of arguments")
    elif isinstance(tests, list):
        cases = [_asserted(str(each)) for each in tests]
    else:
        raise ValueError("neither inputs and outputs, nor a list of asserts")
    if not cases:
        raise ValueError("it is empty")
    return cases


def _asserted(text: str) -> Case:
    lines = ast.parse(text.strip()).body
    test = lines[0].test if len(lines) == 1 and isinstance(lines[0], ast.Assert) else None
    if not isinstance(test, ast.Compare) or len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq):
        raise ValueError(f"{text!r:.80} is not of the form: assert f(...) == value")
    return Case("", ast.unparse(test.left), ast.literal_eval(test.comparators[0]))


def _is_right(ended: Ended, case: Case) -> bool:
    if case.call is None:
        return _lines(ended.output) == _lines(case.wanted)
    if len(ended.output) > _SHORT + _LONGER * len(repr(case.wanted)):  # to read them may take long
        return False
    try:
        return _equal(ast.literal_eval(ended.output), case.wanted)
    except (
        ValueError,
        TypeError,
        SyntaxError,
        RecursionError,
        MemoryError,
        OverflowError,
    ):
        return False


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def _equal(given: Any, wanted: Any, depth: int = 0) -> bool:
    """Numbers to nine digits; a tuple equals a list, because JSON has no tuples."""
    if depth > _MOST_DEEP:
        return False
    if isinstance(given, bool) or isinstance(wanted, bool):
        return given is wanted
    if isinstance(given, int | float) and isinstance(wanted, int | float):
        both_whole = isinstance(given, int) and isinstance(wanted, int)
        return given == wanted if both_whole else math.isclose(given, wanted, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(given, list | tuple) and isinstance(wanted, list | tuple):
        return len(given) == len(wanted) and all(map(_equal, given, wanted, [depth + 1] * len(given)))
    if isinstance(given, dict) and isinstance(wanted, dict):
        return given.keys() == wanted.keys() and all(_equal(given[key], wanted[key], depth + 1) for key in given)
    return bool(type(given) is type(wanted) and given == wanted)
