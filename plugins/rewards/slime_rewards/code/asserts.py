"""Tests that are written as Python: `assert f(1) == 2`, alone, in a `check(candidate)` or in functions `test_*`.

Nothing of them is run here. The program's process evaluates the call, and its value is compared outside of it, so what
an assert compares has to be written out.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
import operator
from collections.abc import Iterator
from typing import Any, NamedTuple

_OWN_MODULES = ("solution", "main", "answer", "your_module", "candidate")
"""Modules from which published tests import what they test."""
_MOST = 64
_LIBRARY = frozenset(dir(builtins))
_SUMS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


class Case(NamedTuple):
    """A test.

    Attributes:
        given: standard input.
        call: an expression; None: standard input and output are compared.
        wanted: text, or the value of the expression.
        names: what the call takes of the program.
        setup: code that runs before the program.
        of_json: see `slime_rewards.code.compare.same_value`; False: the value is Python's.
        within: how far numbers may be apart.
        inner: the only value of a list, where the published graders take it for the list.
    """

    given: str
    call: str | None
    wanted: Any
    names: tuple[str, ...] = ()
    setup: str = ""
    of_json: bool = True
    within: float = 0.0
    inner: tuple[Any, ...] = ()


def asserted(source: str, tested: str | None) -> tuple[str, list[Case]]:
    """Code before the program, and the tests; `tested` is the function that `candidate` stands for.

    Raises:
        ValueError: there is something else, or an assert of another form.
        SyntaxError: it is no Python.
    """
    reader = _Reader(tested)
    tests = [*reader.tests(ast.parse(source.strip()).body, {})]
    return "\n".join(reader.imports), tests


class _Reader:
    def __init__(self, tested: str | None) -> None:
        self._tested = tested
        self.imports: list[str] = []

    def tests(self, body: list[ast.stmt], known: dict[str, ast.expr]) -> Iterator[Case]:
        known = dict(known)
        for each in body:
            match each:
                case ast.Assert(test=test):
                    yield from self._of(_Put(known).visit(copy.deepcopy(test)))
                case ast.FunctionDef(name=name, args=args, body=inner) if name.startswith(("check", "test")):
                    taken = [argument.arg for argument in args.args if argument.arg != "self"]
                    if len(taken) > 1 or (taken and self._tested is None):
                        raise ValueError(f"{name}() takes {', '.join(taken)}, and no entry_point says what that is")
                    given = {argument: ast.Name(str(self._tested), ast.Load()) for argument in taken}
                    yield from self.tests(inner, {**known, **given})
                case ast.ClassDef(name=name, body=inner) if name.lower().startswith("test"):
                    yield from self.tests(inner, known)
                case ast.Import() | ast.ImportFrom():
                    if not (isinstance(each, ast.ImportFrom) and each.module in _OWN_MODULES):
                        self.imports.append(ast.unparse(each))
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    known[name] = _Put(known).visit(copy.deepcopy(value))
                case ast.Expr(value=ast.Constant()) | ast.Pass():
                    pass
                case ast.Expr(value=ast.Call(func=ast.Name(id=name))) if name.startswith(("check", "test", "print")):
                    pass
                case _:
                    raise ValueError(f"its tests have {ast.unparse(each)!r:.60}: only asserts are read")

    def _of(self, test: ast.expr) -> Iterator[Case]:
        match test:
            case ast.Constant(value=True):
                return
            case ast.BoolOp(op=ast.And(), values=values):
                for each in values:
                    yield from self._of(each)
            case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
                yield _equal(test, left, right)
            case ast.Compare(left=ast.Call(func=ast.Name(id="abs"), args=[ast.BinOp(op=ast.Sub()) as apart]),
                             ops=[ast.Lt() | ast.LtE()], comparators=[most]):  # fmt: skip
                yield _equal(test, apart.left, apart.right, within=_number(most))
            case ast.Call(func=ast.Attribute(attr="isclose") | ast.Name(id="isclose"), args=[left, right]):
                found = _equal(test, left, right)
                limits = {keyword.arg: _number(keyword.value) for keyword in test.keywords}
                relative = limits.get("rel_tol", 0.0) * abs(_number(ast.Constant(found.wanted)))
                yield found._replace(within=max(relative, limits.get("abs_tol", 0.0)))
            case ast.UnaryOp(op=ast.Not(), operand=ast.Call(func=ast.Name()) as call):
                yield _test(ast.UnaryOp(ast.Not(), call), True)
            case ast.Call(func=ast.Name(id=name)) if name not in _LIBRARY:
                yield _test(ast.UnaryOp(ast.Not(), ast.UnaryOp(ast.Not(), test)), True)
            case _:
                raise _other(test)


class _Put(ast.NodeTransformer):
    """Puts an assigned value in the place of its name."""

    def __init__(self, known: dict[str, ast.expr]) -> None:
        self._known = known

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._known.get(node.id, node)


def _equal(test: ast.expr, left: ast.expr, right: ast.expr, within: float = 0.0) -> Case:
    for call, other in ((left, right), (right, left)):
        try:
            wanted = _value(other)
        except (ValueError, TypeError, SyntaxError, ArithmeticError):
            continue
        return _test(call, wanted, within)
    raise _other(test)


def _test(call: ast.expr, wanted: Any, within: float = 0.0) -> Case:
    text = ast.unparse(call)
    called = [each.func for each in ast.walk(call) if isinstance(each, ast.Call)]
    names = dict.fromkeys(each.id for each in called if isinstance(each, ast.Name) and each.id not in _LIBRARY)
    if not called:
        raise ValueError(f"{text!r:.60} calls no function of the program")
    return Case("", text, wanted, tuple(names), of_json=False, within=within)


def _other(test: ast.expr) -> ValueError:
    return ValueError(f"'assert {ast.unparse(test):.60}' is not of the form: assert f(...) == value")


def _number(node: ast.expr) -> float:
    value = _value(node)
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise ValueError(f"{ast.unparse(node)!r:.40} is no number")
    return float(value)


def _value(node: ast.expr) -> Any:
    """The value of a literal, a sum or power of numbers, a set, or infinity. Raises ValueError for others."""
    match node:
        case ast.BinOp(left=left, op=op, right=right):
            one, other = _value(left), _value(right)
            if not all(type(each) in (int, float) for each in (one, other)):
                return ast.literal_eval(node)
            if isinstance(op, ast.Pow) and abs(one) <= 2**_MOST and abs(other) <= _MOST:
                return one**other
            if type(op) not in _SUMS:
                raise ValueError(ast.unparse(node))
            return _SUMS[type(op)](one, other)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.Call(func=ast.Name(id="set" | "frozenset"), args=[] | [_]) if not node.keywords:
            return set(_value(node.args[0])) if node.args else set()
        case ast.Call(func=ast.Name(id="tuple" | "list" as kind), args=[only]):
            return tuple(_value(only)) if kind == "tuple" else list(_value(only))
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value=str() as text)]):
            return float(text)
        case ast.Attribute(value=ast.Name(id="math"), attr="inf" | "pi" as name):
            return getattr(math, name)
        case ast.List(elts=elements):
            return [_value(each) for each in elements]
        case ast.Tuple(elts=elements):
            return tuple(_value(each) for each in elements)
    return ast.literal_eval(node)
