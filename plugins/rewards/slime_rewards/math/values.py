"""Compares the values of two formulas, computed to 250 digits, at drawn points where they have letters.

This decides what normal forms cannot: logarithms, angles, nested roots, sums of fractions and complex numbers. Two
formulas whose values agree to 130 digits at three points are taken as equal. The work is bounded by the number of
tokens and by the size of every value on the way, so nothing has to be interrupted. Letters take positive and negative
values, because the root of x^2 is not x.

Numbers that are too large to write out are compared by their remainders of division by a few large primes, whatever the
size of their powers, factorials and binomials: `2^{10000} - 1` takes microseconds. Two rational numbers whose
remainders agree for all primes are taken as equal; a difference would have to be a multiple of them all, of 360 bits
together. Letters, roots and logarithms have no remainder.
"""

from __future__ import annotations

import functools
import operator
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from slime_rewards.math.forms import Unreadable, exact, folded
from slime_rewards.math.formulas import Tree

_DIGITS, _MAX_SIZE, _MAX_ARGUMENT = 250, 10.0**100, 400.0
_TOLERANCE, _ZERO = "1e-130", "1e-120"
_ROUGH, _WHOLE = 1e-6, 1e-9
_POINTS = 3
_CONSTANTS = {"\\pi": "pi", "e": "e"}
_UNKNOWN = ("∞", "…", "∅")
_FAILED = (ArithmeticError, ValueError, TypeError, Unreadable)


def agree(one: Tree, other: Tree) -> bool:
    """Compare the values of two trees at every drawn point. False if either has no value at one of them."""
    import mpmath  # here, because it takes 60 ms and most answers are decided before

    for point in range(_POINTS if _has_letters(one) or _has_letters(other) else 1):
        try:
            rough = _rough(one, point), _rough(other, point)
        except _FAILED:
            rough = None
        if rough and not abs(rough[0] - rough[1]) <= _ROUGH * max(1.0, abs(rough[0]), abs(rough[1])):
            return False
        with mpmath.workdps(_DIGITS):
            try:
                left, right = (_Evaluation(mpmath.mp, point).of(tree) for tree in (one, other))
            except _FAILED:
                return False
            if not abs(left - right) <= mpmath.mpf(_TOLERANCE) * max(1, abs(left), abs(right)):
                return False
    return True


@functools.lru_cache(maxsize=1024)
def _rough(tree: Tree, point: int) -> complex:
    """The value in floating point, which tells most that differ."""
    from mpmath import fp

    return complex(_Evaluation(fp, point).of(tree))


def _has_letters(tree: Tree) -> bool:
    if tree[0] == "name":
        return tree[1] not in _CONSTANTS and tree[1] != "i"
    return any(isinstance(part, tuple) and _has_letters(part) for part in tree[1:])


class _Evaluation:
    """The values of trees at one point.

    Args:
        context: of mpmath: `mp` with as many digits as wanted, or `fp` in floating point.
        point: which of the drawn values letters have.
    """

    def __init__(self, context: Any, point: int) -> None:
        self._context, self._point = context, point
        self._operations: Mapping[str, Callable[..., Any]] = {
            "+": operator.add,
            "-": operator.neg,
            "*": operator.mul,
            "/": self._over,
            "^": self._power,
            "!": lambda value: context.factorial(_small(value)),
            "root": self._root,
            "choose": lambda above, below: context.binomial(_small(above), _small(below)),
            "abs": lambda value: context.mpf(abs(value)),
            "floor": lambda value: context.floor(self._unless_whole(value)),
            "ceil": lambda value: context.ceil(self._unless_whole(value)),
            "degree": lambda value: value * context.pi / 180,
            "max": lambda *values: max(map(self._real, values)),
            "min": lambda *values: min(map(self._real, values)),
        }

    def of(self, tree: Tree) -> Any:
        """The value of a tree, a real or complex number of `context`.

        Raises:
            Unreadable, ArithmeticError, ValueError: it has none, or one that is too large on the way.
        """
        kind, *parts = tree
        if kind == "number":
            return self._fraction(parts[0])
        if kind == "name":
            return self._name(parts[0])
        if kind == "_":
            return self._drawn(repr(tree))
        if kind == "apply":
            value = self._applied(*parts)
        elif kind in self._operations:
            value = self._operations[kind](*map(self.of, parts))
        else:
            raise Unreadable
        if not abs(value) < _MAX_SIZE:
            raise Unreadable
        return value

    def _fraction(self, number: Fraction) -> Any:
        if abs(number) >= _MAX_SIZE:
            raise Unreadable
        return self._context.mpf(number.numerator) / number.denominator

    def _name(self, name: str) -> Any:
        if name == "i":
            return self._context.mpc(0, 1)
        if name in _CONSTANTS:
            return +getattr(self._context, _CONSTANTS[name])
        if name in _UNKNOWN:
            raise Unreadable
        return self._drawn(name)

    def _drawn(self, name: str) -> Any:
        """The same value for the same name at a point, never a round one."""
        draw = random.Random(f"{name} {self._point}")
        size = draw.uniform(0.3, 2.2)
        return self._context.mpf(-size if self._point and draw.random() < 0.5 else size)

    def _over(self, above: Any, below: Any) -> Any:
        if abs(below) < float(_ZERO):
            raise Unreadable
        return above / below

    def _power(self, base: Any, exponent: Any) -> Any:
        if abs(base) < float(_ZERO):
            if abs(exponent) < float(_ZERO) or self._context.re(exponent) < 0:
                raise Unreadable
            return self._context.mpf(0)
        if abs(exponent) * (1 + abs(self._context.log(abs(base)))) > _MAX_ARGUMENT:
            raise Unreadable
        return self._context.power(base, exponent)

    def _root(self, degree: Any, value: Any) -> Any:
        number = int(self._context.re(degree))
        if number != degree or not 1 < number < 100:
            raise Unreadable
        if number % 2 and self._context.im(value) == 0 and self._context.re(value) < 0:
            return -self._context.root(-self._context.re(value), number)
        return self._context.root(value, number)

    def _unless_whole(self, value: Any) -> Any:
        """A real number; whole where it is but for the last digits, as the logarithm of 8 to base 2."""
        value = self._real(value)
        nearest = self._context.nint(value)
        return nearest if abs(value - nearest) < _WHOLE else value

    def _real(self, value: Any) -> Any:
        if self._context.im(value):
            raise Unreadable
        return self._context.re(value)

    def _applied(self, function: str, index: Tree | None, argument: Tree) -> Any:
        value, name = self.of(argument), function.removeprefix("\\")
        if name in ("ln", "log", "lg"):
            return self._log(value) / self._log_of_base(name, index)
        method = getattr(self._context, _FUNCTIONS.get(name, ""), None)
        if index is not None or method is None:
            raise Unreadable
        return method(_small(value))

    def _log(self, value: Any) -> Any:
        if abs(value) < float(_ZERO):
            raise Unreadable
        return self._context.log(value)

    def _log_of_base(self, name: str, index: Tree | None) -> Any:
        r"""`\log` without a base may be of 10, 2 or e: it is of a base of its own."""
        if name == "ln":
            if index is not None:
                raise Unreadable
            return self._context.mpf(1)
        logarithm = self._log(
            self._context.mpf(random.Random(name).uniform(3.3, 9.7)) if index is None else self.of(index)
        )
        if abs(logarithm) < float(_ZERO):
            raise Unreadable
        return logarithm


def _small(value: Any) -> Any:
    if abs(value) > _MAX_ARGUMENT:
        raise Unreadable
    return value


_OWN = ("sin", "cos", "tan", "cot", "sec", "csc")
_FUNCTIONS = {
    "exp": "exp",
    **{f"{name}{kind}": f"{name}{kind}" for name in _OWN for kind in ("", "h")},
    **{f"arc{name}{kind}": f"a{name}{kind}" for name in _OWN for kind in ("", "h")},
}


_PRIMES = (2**127 - 1, 2**126 - 137, 2**107 - 1)
_MAX_FACTORIAL = 5000


def remainders_agree(one: Tree, other: Tree) -> bool:
    """Compare the remainders of two trees. False if either has none."""
    try:
        return all(remainder(one, prime) == remainder(other, prime) for prime in _PRIMES)
    except Unreadable:
        return False


def remainder(tree: Tree, prime: int) -> int:
    """Raises Unreadable: the tree is no rational number, or its denominator is a multiple of the prime."""
    kind, *parts = tree
    if kind == "number":
        value: Fraction = parts[0]
        return value.numerator % prime * _inverse(value.denominator % prime, prime) % prime
    if kind == "^":
        base, exponent = remainder(parts[0], prime), _whole(parts[1])
        if exponent < 0:
            base, exponent = _inverse(base, prime), -exponent
        if not base and not exponent:
            raise Unreadable
        return pow(base, exponent, prime)
    if kind == "!":
        return _factorial(_whole(parts[0]), prime)
    if kind == "choose":
        above, below = map(_whole, parts)
        if not 0 <= below <= above:
            raise Unreadable
        under = _factorial(below, prime) * _factorial(above - below, prime) % prime
        return _factorial(above, prime) * _inverse(under, prime) % prime
    if kind not in ("+", "-", "*", "/"):
        raise Unreadable
    values = [remainder(part, prime) for part in parts]
    if kind == "-":
        return -values[0] % prime
    one, other = values
    return {"+": one + other, "*": one * other}[kind] % prime if kind != "/" else one * _inverse(other, prime) % prime


def _inverse(value: int, prime: int) -> int:
    if not value:
        raise Unreadable
    return pow(value, -1, prime)


@functools.lru_cache(maxsize=64)
def _factorial(number: int, prime: int) -> int:
    if not 0 <= number <= _MAX_FACTORIAL:
        raise Unreadable
    value = 1
    for factor in range(2, number + 1):
        value = value * factor % prime
    return value


def _whole(tree: Tree) -> int:
    """The value of an exponent, which has to be a whole number that can be written out."""
    value = exact(folded(tree))
    if value.denominator != 1:
        raise Unreadable
    return int(value)
