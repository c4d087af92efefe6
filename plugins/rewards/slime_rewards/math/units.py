"""Units behind a number: which words are one, and in which spelling."""

from __future__ import annotations

import re
from fractions import Fraction

_SAME = {
    "percent": "% percentage pct",
    "degree": "° deg",
    "°C": "degreec celsius",
    "°F": "degreef fahrenheit",
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "dm": "decimeter decimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inches",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "s": "sec second",
    "min": "minute",
    "h": "hr hour",
    "year": "yr",
    "am": "a.m. a.m",
    "pm": "p.m. p.m",
    "mg": "milligram",
    "g": "gram gramme",
    "kg": "kilogram",
    "ton": "tonne",
    "lb": "lbs pound",
    "oz": "ounce",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "gal": "gallon",
    "dollar": "usd buck",
    "euro": "eur €",
    "£": "gbp",
    "yuan": "rmb cny",
    "n": "newton",
    "j": "joule",
    "w": "watt",
    "v": "volt",
    "ampere": "amp",
    "pa": "pascal",
    "hz": "hertz",
    "mol": "mole",
    "rad": "radian",
    "people": "person",
    "square": "sq",
    "cubic": "cu",
}
_ONE_NAME = "day week month cent ohm kelvin mph kph unit point time way"
_BASE = {name: name for name in _ONE_NAME.split()}
_BASE |= {name: base for base, others in _SAME.items() for name in (base.lower(), *others.split())}
# Behind a number these say something else about it, although they look like plural nouns.
_NO_NOUN = (
    "or and not no is are was has its less plus minus always others this sometimes equals means gives thus yes wrong "
    "divides exceeds remains makes does lies mod modulo base if but than as us perhaps unless besides false of ones "
    "twos threes fours fives sixes sevens eights nines tens pairs dozens scores hundreds thousands millions billions "
    "trillions halves thirds quarters cubes squares times negatives opposites"
)
_POWERS = {"square": 2, "cubic": 3}
_COMPOUND = {"mph": {"mi": 1, "h": -1}, "kph": {"km": 1, "h": -1}}
_SIZES: dict[str, dict[str, int | str]] = {
    "m": {"mm": "1/1000", "cm": "1/100", "dm": "1/10", "m": 1, "km": 1000},
    "in": {"in": 1, "ft": 12, "yd": 36, "mi": 63360},
    "s": {"s": 1, "min": 60, "h": 3600, "day": 86400, "week": 604800},
    "g": {"mg": "1/1000", "g": 1, "kg": 1000},
    "oz": {"oz": 1, "lb": 16},
    "cent": {"cent": 1, "dollar": 100},
    "m^3": {"l": "1/1000", "ml": "1/1000000"},
}
_SCALES = {name: (Fraction(size), base) for base, sizes in _SIZES.items() for name, size in sizes.items()}
_MAGNITUDE = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_LETTERS = re.compile(r"[a-z.°%€£]+")
_TEXT = r"\\text\s*\{([^{}]*)\}"
_ABOVE = r"(?:\s*\^\s*\{?\s*-?\d\s*\}?)?"
_PART = re.compile(rf"/|([a-z.°%€£]+)({_ABOVE})")
_WRITTEN_UNIT = rf"(?:{_TEXT}|([a-z]+)\b)"
_QUANTITY = re.compile(rf"(\d+(?:\.\d+)?)\s*{_WRITTEN_UNIT}")
_MIXED = re.compile(rf"\s*(?:\d+(?:\.\d+)?\s*{_WRITTEN_UNIT}\s*(?:,|and\s)?\s*){{2,}}")
_TAIL = re.compile(
    rf"\s*(?:(?P<marked>(?:{_TEXT}{_ABOVE})(?:\s*[/*]?\s*{_TEXT}{_ABOVE})*)|(?P<sign>%|°\s*(?:(?:{_TEXT})|[CF])?|€|£)"
    rf"|(?<![a-zA-Z\\])(?P<plain>[a-zA-Z][a-zA-Z.]+(?:[ /][a-zA-Z.]+){{0,3}}{_ABOVE}))\s*$"
)
_ANGLE = re.compile(
    r"(?:\\(?:sin|cos|tan|cot|sec|csc)[^°]*|\\(?:hbar|ell) .*)°\s*\)*$"
)  # the degrees are of the argument
_MONEY = re.compile(r"\\\$|€|£")


def split_unit(text: str) -> tuple[str, str]:
    r"""`text` before its unit, and the unit in one spelling; empty if there is none.

    `3\text{ million dollars}` becomes `3*10^{6}` and `dollar`. Words that are no unit stay in the text.
    """
    coin = _MONEY.match(text.lstrip(" -+"))
    if coin:
        text = text.replace(coin[0], "", 1)
    found = None if _ANGLE.search(text) else _TAIL.search(text)
    unit = None
    if found and text[: found.start()].strip(" -+"):
        words = re.sub(_TEXT, r" \1 ", found[0]).split()
        power = _MAGNITUDE.get(words[0].lower(), 0) if words else 0
        unit = _unit(words[1:] if power else words)
        if unit is not None:
            before = text[: found.start()].strip()
            text = f"{before}*10^{{{power}}}" if power else before
    if coin and not unit:
        unit = {"€": "euro", "£": "£"}.get(coin[0], "dollar")
    return text.strip(), unit or ""


def scale(unit: str) -> tuple[Fraction, str] | None:
    """Size of a unit in its basic unit, and that one: `km` is 1000 of `m`, `km/h` 5/18 of `m/s`; None if unknown."""
    factor, powers = Fraction(1), dict[str, int]()
    for part in unit.split("*"):
        name, _, power = part.partition("^")
        if name not in _SCALES:
            return None
        size, base = _SCALES[name]
        base, _, dimension = base.partition("^")
        factor *= size ** int(power or 1)
        powers[base] = powers.get(base, 0) + int(power or 1) * int(dimension or 1)
    return factor, _canonical(powers)


def sum_of_units(text: str) -> tuple[str, str] | None:
    r"""`1 hour 30 minutes` and `5\text{ ft }6\text{ in}` as a number of their last unit; None if it is no such sum."""
    if not _MIXED.fullmatch(text):
        return None
    total, last = Fraction(0), None
    for number, marked, plain in _QUANTITY.findall(text):
        unit = _unit((marked or plain).split())
        found = scale(unit) if unit else None
        if found is None or unit is None or (last and (found[1] != last[1][1] or found[0] >= last[1][0])):
            return None
        total, last = total + Fraction(number) * found[0], (unit, found)
    return (str(total / last[1][0]), last[0]) if last else None


def _unit(words: list[str]) -> str | None:
    """The unit that the words name, as `m*s^-2`; None if they name none. A noun in the plural counts as one."""
    text = re.sub(r"\bper\b", "/", " ".join(words).lower()).replace("° ", "°")
    parts = [_word(part) for part in _LETTERS.findall(text)]
    if not parts:
        return "" if not text else None
    if not all(part in _BASE for part in parts):
        nouns = _LETTERS.findall(text)
        last = nouns[-1]
        is_plural = len(last) > 3 and last.endswith("s") and not last.endswith(("ss", "us", "is", "ths"))  # tenths
        is_noun = is_plural and len(nouns) <= 3 and not set(nouns) & set(_NO_NOUN.split())
        return " ".join(parts) if is_noun and not re.search(r"[^a-z. -]", text) else None
    powers: dict[str, int] = {}
    sign, next_power = 1, 1
    for found in _PART.finditer(text):
        if found[0] == "/":
            sign = -1
            continue
        word, power = _word(found[1]), int(re.sub(r"[\s{}^]", "", found[2] or "") or 1)
        if word in _POWERS:
            next_power = _POWERS[word]
            continue
        for name, more in _COMPOUND.get(word, {word: 1}).items():
            powers[name] = powers.get(name, 0) + sign * power * next_power * more
        next_power = 1
    return _canonical(powers) if powers else None


def _canonical(powers: dict[str, int]) -> str:
    return "*".join(f"{name}^{power}" if power != 1 else name for name, power in sorted(powers.items()) if power)


def _word(word: str) -> str:
    word = word.replace("°c", "degreec").replace("°f", "degreef")
    for form in (word, word.rstrip("."), word.rstrip(".").removesuffix("s")):
        if form in _BASE:
            return _BASE[form].lower()
    return word.rstrip(".").removesuffix("s")
