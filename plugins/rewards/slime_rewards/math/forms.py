r"""Normal forms of sums: two formulas with the same form are equal.

A form is a set of monomials with exact rational coefficients; a monomial is a set of atoms with rational exponents.
Atoms are letters, `\pi`, whole numbers under a root, and whatever is not opened up, such as `\sin(x)`, by its form.
Forms that differ may still be equal: this is the arithmetic of fractions, of powers and roots of whole numbers and of
polynomials, and no more algebra. What is too large has no form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

Monomial = frozenset[tuple[Any, Fraction]]
Sum = dict[Monomial, Fraction]
Form = frozenset[tuple[Monomial, Fraction]]

ONE: Monomial = frozenset()
_MAX_TERMS, _MAX_BITS, _MAX_ATOMS = 40, 4000, 40
_MAX_FACTORED, _MAX_PRIME, _MAX_FACTORIAL, _MAX_CHOSEN, _MAX_EXPANDED = 10**12, 1000, 30, 200, 8

_RELATED = {"i", "°"}  # to -1, and to the angle pi


class Unreadable(Exception):
    """This text has no tree, this tree no form, or this form no value."""


def folded(tree: tuple[Any, ...]) -> Sum:
    """The sum that a tree of `formulas` comes to.

    Raises:
        Unreadable: it is too large, or a division by zero.
    """
    kind, *parts = tree
    if kind == "number":
        return constant(parts[0])
    if kind == "name":
        return atom(parts[0])
    if kind == "apply":
        function, index, argument = parts
        return atom((function, index and form_of(folded(index)), form_of(folded(argument))))
    return _FOLDS[kind](*map(folded, parts))


def form_of(value: Sum) -> Form:
    return frozenset(value.items())


def scaled(form: Form) -> Form:
    """The form divided by one of its coefficients, so that all its multiples become one."""
    terms = dict(form)
    factor = terms[min(terms, key=_order)]
    return form_of({monomial: number / factor for monomial, number in terms.items()})


def is_settled(form: Form) -> bool:
    """A form that equals no other: its atoms are letters and roots of small primes, which nothing relates."""
    atoms = {atom for monomial, _ in form for atom, _ in monomial}
    return not atoms & _RELATED and all(
        isinstance(atom, str) or (isinstance(atom, int) and atom < _MAX_PRIME) for atom in atoms
    )


def rational(found: Form | None) -> Fraction | None:
    """The value of a form that is a rational number."""
    if found is None or len(found) > 1:
        return None
    for monomial, value in found:
        return value if monomial == ONE else None
    return Fraction(0)


def constant(value: Fraction | int) -> Sum:
    return {ONE: Fraction(value)} if value else {}


def atom(name: Any) -> Sum:
    return {frozenset([(name, Fraction(1))]): Fraction(1)}


def exact(value: Sum) -> Fraction:
    number = rational(form_of(value))
    if number is None:
        raise Unreadable
    return number


def negative(value: Sum) -> Sum:
    return {monomial: -number for monomial, number in value.items()}


def added(one: Sum, other: Sum) -> Sum:
    total = dict(one)
    for monomial, value in other.items():
        new = total.pop(monomial, Fraction(0)) + value
        if new:
            total[monomial] = _small(new)
    return _few(total)


def _few(total: Sum) -> Sum:
    if len(total) > _MAX_TERMS:
        raise Unreadable
    return total


def times(one: Sum, other: Sum) -> Sum:
    total: Sum = {}
    for left, a in one.items():
        for right, b in other.items():
            factor, monomial = _merged(left, right)
            value = total.pop(monomial, Fraction(0)) + a * b * factor
            if value:
                total[monomial] = _small(value)
    return _few(total)


def _merged(left: Monomial, right: Monomial) -> tuple[Fraction, Monomial]:
    """The product of two monomials: a rational factor that roots of whole numbers give, and the rest."""
    if not left or not right:
        return Fraction(1), left or right
    exponents = dict(left)
    for atom, exponent in right:
        exponents[atom] = exponents.get(atom, Fraction(0)) + exponent
    return _folded(exponents)


def _folded(exponents: dict[Any, Fraction]) -> tuple[Fraction, Monomial]:
    """Whole powers of whole numbers belong to the factor: 2^(3/2) is 2 times 2^(1/2)."""
    factor, kept = Fraction(1), []
    for atom, exponent in exponents.items():
        if isinstance(atom, int):
            whole = math.floor(exponent)
            factor *= Fraction(atom) ** whole
            exponent -= whole
        if exponent:
            kept.append((atom, exponent))
    if len(kept) > _MAX_ATOMS:
        raise Unreadable
    return factor, frozenset(kept)


def inverse(value: Sum) -> Sum:
    if not value:
        raise Unreadable
    if len(value) > 1:  # a sum below the line is an atom, scaled so that x + 1 and 2x + 2 are one
        scale = value[min(value, key=_order)]
        return {frozenset([(scaled(form_of(value)), Fraction(-1))]): 1 / scale}
    [(monomial, number)] = value.items()
    factor, inverted = _folded({atom: -exponent for atom, exponent in monomial})
    return {inverted: factor / number}


def raised(base: Sum, exponent: Sum) -> Sum:
    number = rational(form_of(exponent))
    opaque = atom(("^", form_of(base), form_of(exponent)))
    if number is None:
        return opaque
    if number.denominator == 1:
        return _whole_power(base, int(number), opaque)
    known = rational(form_of(base))
    if known is None:
        [[root]] = base if len(base) == 1 and all(len(monomial) == 1 for monomial in base) else [[None]]
        if root is not None and root[1] == 1 and set(base.values()) == {Fraction(1)}:  # x^(1/2)
            return {frozenset([(root[0], number)]): Fraction(1)}
        return opaque
    if known <= 0:
        return {} if known == 0 < number else opaque
    exponents: dict[Any, Fraction] = {}
    for part, sign in ((known.numerator, 1), (known.denominator, -1)):
        for prime, count in _factors(part).items():
            exponents[prime] = exponents.get(prime, Fraction(0)) + sign * count * number
    factor, monomial = _folded(exponents)
    return {monomial: factor}


def _whole_power(base: Sum, exponent: int, opaque: Sum) -> Sum:
    if len(base) == 1:
        [(monomial, value)] = base.items()
        size = max(value.numerator.bit_length(), value.denominator.bit_length())
        if abs(exponent) > _MAX_BITS or (size > 1 and size * abs(exponent) > _MAX_BITS):
            return opaque
        number = value**exponent
        factor, raised = _folded({atom: power * exponent for atom, power in monomial})
        return {raised: _small(number * factor)}
    if not base:
        if exponent <= 0:
            raise Unreadable
        return {}
    if not 0 <= exponent <= _MAX_EXPANDED:
        return opaque
    expanded = constant(1)
    for _ in range(exponent):
        expanded = times(expanded, base)
    return expanded


def _small(value: Fraction) -> Fraction:
    if value.numerator.bit_length() + value.denominator.bit_length() > 2 * _MAX_BITS:
        raise Unreadable
    return value


def _factors(number: int) -> dict[int, int]:
    """Prime factors with their multiplicities; what is left after the small ones counts as one."""
    if number > _MAX_FACTORED:
        raise Unreadable
    found: dict[int, int] = {}
    divisor = 2
    while divisor * divisor <= number and divisor < _MAX_PRIME:
        while number % divisor == 0:
            found[divisor] = found.get(divisor, 0) + 1
            number //= divisor
        divisor += 1
    root = math.isqrt(number)
    if root > 1 and root * root == number:
        found[root] = 2
    elif number > 1:
        found[number] = found.get(number, 0) + 1
    return found


def root(degree: Sum, value: Sum) -> Sum:
    index = exact(degree)
    if index.denominator != 1 or not 1 < index < 100:
        raise Unreadable
    number = rational(form_of(value))
    if number is not None and number < 0 and index % 2:
        return negative(raised(negative(value), constant(1 / index)))
    return raised(value, constant(1 / index))


def computed(kind: str, function: Callable[..., Fraction | int], *values: Sum) -> Sum:
    """The value of a function of known numbers; else an atom, to which the order of the arguments of several is one."""
    forms = [form_of(value) for value in values]
    numbers = [rational(form) for form in forms]
    if None in numbers:
        return atom((kind, frozenset(forms)) if kind in _OF_SEVERAL else (kind, *forms))
    return constant(_small(Fraction(function(*numbers))))


def _whole(number: Fraction) -> int:
    if number.denominator != 1:
        raise Unreadable
    return int(number)


def _factorial(number: Fraction) -> int:
    if not 0 <= number <= _MAX_FACTORIAL:
        raise Unreadable
    return math.factorial(_whole(number))


def _chosen(above: Fraction, below: Fraction) -> int:
    if not 0 <= below <= above <= _MAX_CHOSEN:
        raise Unreadable
    return math.comb(_whole(above), _whole(below))


def _order(value: Any) -> str:
    """The same text for equal monomials, in whatever order their sets are walked through."""
    if isinstance(value, frozenset):
        return f"{{{','.join(sorted(map(_order, value)))}}}"
    return f"({','.join(map(_order, value))})" if isinstance(value, tuple) else str(value)


_OF_SEVERAL = ("max", "min", "gcd", "lcm")
_FUNCTIONS: dict[str, Callable[..., Fraction | int]] = {
    "!": _factorial,
    "choose": _chosen,
    "abs": abs,
    "floor": math.floor,
    "ceil": math.ceil,
    "max": lambda *numbers: max(numbers),
    "min": lambda *numbers: min(numbers),
    "gcd": lambda *numbers: math.gcd(*map(_whole, numbers)),
    "lcm": lambda *numbers: math.lcm(*map(_whole, numbers)),
}
_FOLDS: dict[str, Callable[..., Sum]] = {
    "+": added,
    "-": negative,
    "*": times,
    "/": lambda above, below: times(above, inverse(below)),
    "^": raised,
    "_": lambda base, index: atom(("_", form_of(base), form_of(index))),
    "root": root,
    "degree": lambda value: times(value, atom("°")),
    **{kind: functools.partial(computed, kind, function) for kind, function in _FUNCTIONS.items()},
}
