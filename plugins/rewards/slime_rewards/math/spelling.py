r"""One spelling for LaTeX, Markdown and Unicode mathematics: `\dfrac12`, `\tfrac{1}{2}` and `\frac{1}2` begin alike.

Signs that have many names become one character (`≤ ≥ ≠ ∞ ∪ ∩ ∈ ∅ ± ° *`), braces of sets become `⦃` and `⦄`, and what
only changes the look of a formula goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from slime_rewards.math.phrases import NUMBER_WORDS

_SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁻", "0123456789-", strict=True))
_CHARS = str.maketrans(
    {
        **dict.fromkeys("−–‐‑－", "-"),
        **dict.fromkeys("∨或", r"\text{ or }"),
        **dict.fromkeys("∧和与", r"\text{ and }"),
        **dict.fromkeys("·×⋅∗", "*"),
        **dict.fromkeys("\u00a0\u202f", " "),
        **dict(zip("＋÷⁄’，；（）：＝∣∖０１２３４５６７８９", "+//',;():=|⧵0123456789", strict=True)),
        "｛": r"\{",
        "｝": r"\}",
        "√": r"\sqrt ",
        "∛": r"\sqrt[3] ",
        "∜": r"\sqrt[4] ",
        **{sign: rf"\{name} " for sign, name in zip("πθαβ", ("pi", "theta", "alpha", "beta"), strict=True)},
        **{sign: rf"\frac{{{n}}}{{{d}}}" for sign, n, d in zip("½⅓⅔¼¾", "11213", "23344", strict=True)},
    }
)
_TEXT_COMMANDS = "textbf textit textrm textsf mathrm mathbf mathit mathsf mbox emph operatorname"
_LOOKS = (
    "displaystyle textstyle limits left right bigl bigr Bigl Bigr big Big bigg Bigg mathopen mathclose bf rm it small "
    "boldsymbol bm mathnormal Large large LARGE huge Huge underline ensuremath mathstrut nobreak phantom"
)
_NAMES = {
    **dict.fromkeys(("leq", "le", "leqslant", "leqq"), "≤"),
    **dict.fromkeys(("geq", "ge", "geqslant", "geqq"), "≥"),
    **dict.fromkeys(("neq", "ne"), "≠"),
    "lt": "<",
    "gt": ">",
    "infty": "∞",
    "cup": "∪",
    "cap": "∩",
    "in": "∈",
    **dict.fromkeys(("emptyset", "varnothing"), "∅"),
    "pm": "±",
    "mp": "∓",
    **dict.fromkeys(("degree", "circ"), "°"),
    **dict.fromkeys(("cdot", "times", "ast"), "*"),
    "div": "/",
    "lbrace": "⦃",
    "rbrace": "⦄",
    "langle": "⟨",
    "rangle": "⟩",
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
    **dict.fromkeys(("ldots", "dots", "cdots"), "…"),
    **dict.fromkeys(("approx", "simeq", "doteq"), "≈"),
    **dict.fromkeys(("setminus", "backslash", "smallsetminus"), "⧵"),
    "lfloor": "⌊",
    "rfloor": "⌋",
    "lceil": "⌈",
    "rceil": "⌉",
    "lbrack": "[",
    "rbrack": "]",
    "colon": ":",
    "equiv": "≡",
    **dict.fromkeys(("lor", "vee"), r"\text { or }"),
    **dict.fromkeys(("land", "wedge"), r"\text { and }"),
    "pounds": "£",
    "textdollar": r"\$",
    "euro": "€",
    **dict.fromkeys(("dfrac", "tfrac", "cfrac"), r"\frac "),
    **dict.fromkeys(("dbinom", "tbinom"), r"\binom "),
    **dict.fromkeys(_TEXT_COMMANDS.split(), r"\text"),
    **dict.fromkeys(("bar", "dot"), r"\overline"),
    "varphi": r"\phi",
    **dict.fromkeys(("quad", "qquad", "space", "enspace", "thinspace"), " "),
    **dict.fromkeys(_LOOKS.split(), ""),
}
_SYMBOLS = {",": " ", ";": " ", ":": " ", " ": " ", "!": "", "(": "", ")": "", "[": "", "]": "", "{": "⦃", "}": "⦄"}
_SYMBOLS |= {"|": "|", "%": "%", "$": r"\$", "\\": "\\\\"}  # a row break stays
# A size of delimiters goes with the dot that stands for none; a command is read before what its letters would be.
_COMMAND = re.compile(r"\\(?:left|right)\s*\.|\\([a-zA-Z]+) ?|\\(.)", re.DOTALL)
_SYSTEM = re.compile(r"(?:[({⦃]\s*)?\\begin \{(cases|aligned)\}((?:(?!&[^=<>]|\\end).)*)\\end \{\1\}", re.DOTALL)
_LEFT_BRACED = re.compile(
    r"⦃\s*\\begin \{array\}\s*\{[lcr]\}((?:(?!&[^=<>]|\\end).)*)\\end \{array\}(?!\s*⦄)", re.DOTALL
)
_MARKED_FUNCTION = re.compile(r"\\text\s*\{\s*(max|min|gcd|lcm|ln|log|(?:arc)?(?:sin|cos|tan|cot))\s*\}(?=\s*[({⦃|])")
_LIST_OF_FUNCTION = re.compile(r"\\(?:max|min|gcd|lcm)\s*[({⦃][^(){}⦃⦄]*")
_DRESSED = r"(?:\\(?:vec|hat|tilde|overline|overrightarrow|mathcal|mathscr)\s*\{?\s*([a-zA-Z])\s*\}?)"
_DRESSED_NAME = re.compile(rf"^\s*{_DRESSED}(?=\s*(?:=|∈))")
_REVERSED = re.compile(r"([\[\]])([^\[\]()⦃⦄]*[,;][^\[\]()⦃⦄]*)([\[\]])")
_INFIX = re.compile(r"\{([^{}]*)\\(over|choose) ([^{}]*)\}")
_QUOTIENT_OF_UNITS = re.compile(r"\\frac\s*" + 2 * r"\{\s*\\text\s*\{([^{}]*)\}\s*\}\s*" + "$")
# Each with a text without which it finds nothing: to look for that is quick.
_REST: list[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    ("$", re.compile(r"(?<!\\)\$"), ""),
    ("**", re.compile(r"^\s*\*\*(.*?)\*\*(?=\W*$)"), r"\1"),
    ("<=", re.compile(r"<="), "≤"),
    (">=", re.compile(r">="), "≥"),
    (r"\overline", re.compile(r"(\d*)\.(\d*)\\overline\s*(?:\{(\d+)\}|(\d))"), lambda found: _repeating(found)),
    ("...", re.compile(r"\.\.\."), "…"),
    ("…", re.compile(r"(\d*)\.(\d{0,9}?)(?:(\d)\3\3+|(\d{2,8})\4+)\s*…"), lambda found: _repeating(found)),
    ("{", re.compile(r"\{\s*([:;])\s*\}"), r"\1"),
    ("⦃", re.compile(r"⦃\s*⦄"), "∅"),
    (r"\over ", _INFIX, lambda found: _infix(found)),
    (r"\choose ", _INFIX, lambda found: _infix(found)),
    (r"\over ", re.compile(r"^([^{}]*(?:\{[^{}]*\})?[^{}]*?)\\over (.*)$"), r"\\frac {\1}{\2}"),
    (r"\root ", re.compile(r"\\root (\S+)\s*\\of "), r"\\sqrt [\1]"),
    (r"et ", re.compile(r"\\[sS]et \{([^{}]*)\}"), r"⦃\1⦄"),
    ("{cases}", _SYSTEM, lambda found: _equations(found[2])),
    ("{aligned}", _SYSTEM, lambda found: _equations(found[2])),
    ("{array}", _LEFT_BRACED, lambda found: _equations(found[1])),
    ("mod", re.compile(r"\(?\s*\\?(?<![a-zA-Z])[pb]?mod\s*\{?\s*(\w+)\s*\}?\s*\)?"), r" mod \1"),
    (r"\text", _MARKED_FUNCTION, r"\\\1 "),
    (r"\max", _LIST_OF_FUNCTION, lambda found: found[0].replace(",", ", ")),
    (r"\min", _LIST_OF_FUNCTION, lambda found: found[0].replace(",", ", ")),
    ("=", _DRESSED_NAME, r"\1"),
    ("*", re.compile(r"^(\s*[a-zA-Z])\s*\^\s*\{?\s*\*\s*\}?(?=\s*=)"), r"\1"),
    ("∈", _DRESSED_NAME, r"\1"),
    ("||", re.compile(r"(?<=\s)\|\|(?=\s)"), " or "),
    ("__", re.compile(r"^\s*__(.*?)__(?=\W*$)"), r"\1"),
    (r"\text", re.compile(r"(?<=[a-z])\s*\^\s*\{\s*(-?\d)\s*\}(?=[^{}]*\})"), r"^\1"),
    ("]", re.compile(r"^[^\[\]]*\].*", re.DOTALL), lambda found: _REVERSED.sub(_reversed, found[0])),
    ("[", re.compile(r".*\[[^\[\]]*$", re.DOTALL), lambda found: _REVERSED.sub(_reversed, found[0])),
    ("US", re.compile(r"^\s*(?:USD|US\s*\\\$)\s*(?=\d)"), r"\\$"),
    (r"\text", re.compile(r"\\text\s*\{\s*\}"), ""),
    (r"\text", re.compile(r"_\s*\{?\s*\\text\s*\{\s*([a-z]+)\s*\}\s*\}?"), lambda found: _base(found)),
    (r"\text", _QUOTIENT_OF_UNITS, r"\\text{\1/\2}"),
    ("_", re.compile(r"(?<=\d)_\s*(?:\{\s*10\s*\}|10(?!\d))"), ""),
    ("to", re.compile(r"(?<=\d)\s*(?:\\text\s*\{\s*to\s*\}|\bto\b)\s*(?=\d)"), ":"),
    (r"\color", re.compile(r"\\color\s*\{\w*\}"), ""),
    (r"\textcolor", re.compile(r"\\textcolor\s*\{\w*\}"), ""),
    ("∓", re.compile(r"^([^±∓]*)∓([^±∓]*)$"), r"\1±\2"),
    ("\\\\", re.compile(r"(?:\\\\)+\s*$"), ""),
    ("{,}", re.compile(r"(?<=\d)\{,\}(?=\d)"), ""),
    (",", re.compile(r"\{,\}|\s+,"), ","),
]
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻]+")
_DEGREE = re.compile(r"\^\s*\{\s*°\s*\}|\^\s*°|°")
_WRAPPED = re.compile(r"\s*\\(?:boxed|fbox)\s*\{(.*)\}\s*", re.DOTALL)
_AROUND, _MAX_REPEATED = ' \t\r\n"`“”', 20


def spelled(text: str) -> str:
    """`text` in one spelling. Blanks stay where a reader needs them; a box and a full stop around the whole go."""
    if not text.isascii():
        text = text.translate(_CHARS)
    if "~" in text:
        text = text.replace("~", " ")
    if "\\" in text:
        text = _COMMAND.sub(_command, text)
    if not text.isascii():
        text = _SUPERSCRIPT.sub(lambda found: f"^{{{''.join(map(_SUPERSCRIPTS.__getitem__, found[0]))}}}", text)
        text = _DEGREE.sub("°", text)
    for needed, pattern, replacement in _REST:
        if needed in text:
            text = pattern.sub(replacement, text)
    return unwrapped(text.strip(_AROUND).removesuffix(".").rstrip())


def unwrapped(text: str) -> str:
    """`text` without a box around the whole."""
    wrapped = _WRAPPED.fullmatch(text)
    return wrapped[1].strip() if wrapped and "\\boxed" not in wrapped[1] else text


def _command(found: re.Match[str]) -> str:
    if found[2]:
        return _SYMBOLS.get(found[2], found[0])
    if not found[1]:
        return ""
    name = found[1]
    return _NAMES.get(name, f"\\{name} ") if name != "text" else r"\text"


def _repeating(found: re.Match[str]) -> str:
    """0.1\\overline{6} is (16 - 1) / 90."""
    whole, fixed, period = found[1] or "0", found[2], found[3] or found[4]
    if len(fixed) + len(period) > _MAX_REPEATED:
        return found[0]
    digits = int(whole + fixed + period) - int(whole + fixed)
    return rf"\frac{{{digits}}}{{{'9' * len(period)}{'0' * len(fixed)}}}"


def _infix(found: re.Match[str]) -> str:
    command = {"over": "\\frac", "choose": "\\binom"}[found[2]]
    return f"{command} {{{found[1].strip()}}}{{{found[3].strip()}}}"


def _equations(lines: str) -> str:
    return ", ".join(line.replace("&", "") for line in lines.split(r"\\") if line.strip())


def _reversed(found: re.Match[str]) -> str:
    """]0, 1] is (0, 1]."""
    return f"{'(['[found[1] == '[']}{found[2]}{')]'[found[3] == ']']}"


def _base(found: re.Match[str]) -> str:
    r"""101_{\text{two}} is 101_2."""
    number = NUMBER_WORDS.get(found[1])
    return found[0] if number is None else f"_{{{number}}}"
