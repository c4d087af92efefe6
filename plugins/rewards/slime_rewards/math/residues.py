"""Compares numbers that are too large to write out, by their remainders of division by a few large primes.

Powers of whole numbers, factorials and binomials are reckoned with modulo a prime, whatever their size: `2^{10000} - 1`
takes microseconds. Two rational numbers whose remainders agree for all primes are taken as equal; a difference would
have to be a multiple of them all, of 360 bits together. Letters, roots and logarithms have no remainder.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from slime_rewards.math.forms import Unreadable, exact, folded
from slime_rewards.math.formulas import Tree

_PRIMES = (2**127 - 1, 2**126 - 137, 2**107 - 1)
_MAX_FACTORIAL = 5000


def equal(one: Tree, other: Tree) -> bool:
    """Compare the remainders of two trees. False if either has none."""
    try:
        return all(remainder(one, prime) == remainder(other, prime) for prime in _PRIMES)
    except Unreadable:
        return False


def remainder(tree: Tree, prime: int) -> int:
    """Raises Unreadable: the tree is no rational number, or its denominator is a multiple of the prime."""
    kind, *parts = tree
    if kind == "number":
        return _of_fraction(parts[0], prime)
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


def _of_fraction(value: Fraction, prime: int) -> int:
    return value.numerator % prime * _inverse(value.denominator % prime, prime) % prime


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
