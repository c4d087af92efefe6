r"""One spelling for LaTeX, Markdown and Unicode mathematics: `\dfrac12`, `\tfrac{1}{2}` and `\frac{1}2` begin alike.

Signs that have many names become one character (`≤ ≥ ≠ ∞ ∪ ∩ ∈ ∅ ± ° *`), braces of sets become `⦃` and `⦄`, and what
only changes the look of a formula goes.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_TO_NINETEEN = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen"
)
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
NUMBER_WORDS = {word: value for value, word in enumerate(_TO_NINETEEN.split())}
NUMBER_WORDS |= {ten: 10 * value for value, ten in enumerate(_TENS.split(), 2)}
NUMBER_WORDS |= {
    f"{ten}-{one}": NUMBER_WORDS[ten] + NUMBER_WORDS[one] for ten in _TENS.split() for one in _TO_NINETEEN.split()[1:10]
}
_SAME = {
    "infinity": "∞",
    "positive infinity": "∞",
    "plus infinity": "∞",
    "negative infinity": "-∞",
    "minus infinity": "-∞",
    "empty set": "∅",
    **dict.fromkeys(
        ("real numbers", "all real numbers", "all reals", "set of real numbers", "set of all real numbers", "reals"),
        r"\mathbb {R}",
    ),
    **dict.fromkeys(("dne", "doesn't exist", "limit does not exist"), "does not exist"),
    **dict.fromkeys(("infinitely many solutions", "infinite solutions"), "infinitely many"),
}
_WORDS = re.compile(r"(?:[Aa] )?[a-zA-Z][a-z]+(?:[ '-][a-zA-Z][a-z]*)*", re.ASCII)
_OF_ANY_CASE = ("yes", "no", "true", "false", "none", "dne")
_LIST = re.compile(r" (?:and|or) ")
_MIN_CHARS, _MAX_CHARS = 4, 80  # shorter ones may be products of letters, longer ones are no answer in words
_START = re.compile(r"^(?:there (?:is|are|exists?) )?(?:(?:a|an|the) )?")
_SOLUTIONS = re.compile(r"^no ((?:[a-z]+ )?)(solution|root)s( exists?)?$")
_LETTER = r"(?:\(\s*([A-J])\s*\)|([A-J]))"
_TEXT = re.compile(r"\\text\s*\{\s*([^{}]*?)\s*\}")
_CHOICE = re.compile(rf"{_LETTER}\s*[.):]?")
_LABELLED_CHOICE = re.compile(
    rf"(?:(?i:option|choice|answer)\s+{_LETTER}\s*(?:[.):]|$)|\(\s*([A-J])\s*\)(?=\s*\S)|([A-J])\s*[.):](?=\s*\S))"
)

_LEAD = re.compile(
    r"(?:(?:so|thus|hence|therefore|the|final|correct|required|desired|our|only|possible|real|integer|maximum|minimum"
    r"|largest|smallest|greatest|least)[\s,]+)*"
    r"(?:answers?|maximum|minimum|results?|solutions?|values?(?: of (?:\$?[a-z]\$?|the expression))?)\s*"
    r"(?:(?:is|are|equals?)(?![a-z])\s*:?|[:=])\s*"
    r"|(?:最终)?(?:答案|结果|解)\s*(?:是|为|[:：])[:：]?\s*|####\s*|either(?![a-z])\s*",
    re.IGNORECASE,
)
_MARKED_LEAD = re.compile(r"\\text\s*\{\s*([^{}]*?)\s*\}")


def said(text: str) -> str:
    """Answer behind words that call it the answer, as `6` of `The answer is 6`."""
    marked = _MARKED_LEAD.match(text)
    lead = _LEAD.match(marked[1] if marked else text)
    if lead is None or (marked and marked.end() == len(text) and lead.end() == len(marked[1])):
        return text
    rest = (marked[1][lead.end() :] + text[marked.end() :] if marked else text[lead.end() :]).strip()
    return rest or text


def phrase(text: str) -> str:
    """`text` in one wording if it is in words alone, else as it is; a number in words becomes its digits."""
    words = " ".join(text.split()).removesuffix(".")
    if words.lower() in _OF_ANY_CASE or words in NUMBER_WORDS:
        words = words.lower()
    elif not _MIN_CHARS <= len(words) <= _MAX_CHARS or not _WORDS.fullmatch(words) or _LIST.search(words):
        return text
    words = words.lower()
    words = _START.sub("", words) or words
    words = _SOLUTIONS.sub(r"no \1\2", words)
    return str(NUMBER_WORDS[words]) if words in NUMBER_WORDS else _SAME.get(words, words)


def choice(text: str) -> str:
    """The letter of a choice that is all of `text`, as `B` or `(B)`; empty if it is none."""
    found = _CHOICE.fullmatch(_TEXT.sub(r"\1", text).strip())
    return (found[1] or found[2]) if found else ""


def labelled_choice(text: str) -> str:
    """The letter of a choice before what it stands for, as in `(B) 12`, `B. 12` and `Option B`; empty if it is none."""
    found = _LABELLED_CHOICE.match(_TEXT.sub(r" \1 ", text).strip())
    return next((group for group in found.groups() if group), "") if found else ""


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
