r"""The one number in an answer, as people and models write it, exactly.

    number    = [label] [sign] [currency] (plain | fraction | mixed) [unit]
    label     = "x =", "the final answer is", "Answer:"
    sign      = "-", "+", "minus" or "negative"; what follows may be in brackets
    plain     = 1234, 1,234, 1 234, .5
    fraction  = \frac{1}{2}, 1/2;  mixed = 2\frac{1}{2}, 2 1/2
    unit      = words, with powers and divided by others: km/h, m^2, square metres

Formatting of LaTeX and Markdown is ignored. Anything else could change the number, or make it one
of several, and then there is none. No floats; the text is short, and no rule backtracks.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction
from functools import lru_cache

MAX_ANSWER_CHARS = 200
"""Longer text is not accepted as a number."""
_NESTED = 3
"""Depth of formatting in formatting that is looked through."""

_COLOUR = re.compile(r"\\(?:text|math)?color ?\{\w*\}")
_FORMATTED = re.compile(
    r"\\(?:text(?:bf|it|rm)?|math(?:rm|bf|it)|mbox|underline|operatorname) ?\{([^{}]*)\}"
)
_FORMATTING = (
    (re.compile(r"\\(?:left|right)(?=[()])|\\displaystyle|\\[()\[\]]|\*\*|__|`"), ""),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"(?<=[0-9,])\\[,!:;](?=[0-9]{3}(?![0-9]))|\\!"), ""),
    (re.compile(r"\\[,:; ]|\\q?quad|~"), " "),
    (re.compile(r"\^ ?(?:\{ ?\\circ ?\}|\\circ)|\\degree"), "\N{DEGREE SIGN}"),
    (re.compile(r"\\([$%#&])"), r"\1"),
    (re.compile("\N{MINUS SIGN}"), "-"),
    (re.compile(r"\s+"), " "),
    (re.compile(r"(?<=[0-9]) ?\$$"), ""),  # the end of a formula, or a currency
    (re.compile(r"\(([^\W\d_]+)\)"), r"\1"),  # apple(s)
    # Brackets around the number, if nothing stands beside them that would be a factor.
    (
        re.compile(r"(?<![\w)}])(?<![\w)}] )\( ?([-+$]?[0-9.\\][^()]*?) ?\)(?! ?[0-9(\\.,/*^])"),
        r"\1",
    ),
)

_LABEL = (
    r"(?:(?P<name>[^\W\d_]+)? ?=|(?i:(?:(?:so|thus|hence|therefore),? )?(?:(?:the|my) )?"
    r"(?:final |correct )?(?:answer|result|solution|total|value)(?: is|:| is:| =)))"
)
_CURRENCY = r"(?:(?:US ?)?\$|USD|EUR|GBP)"
_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,3}(?: [0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+"
_FRACTION = (
    r"(?:\\[dt]?frac ?(?:\{ ?(?P<a>[0-9]+) ?\}|(?P<b>[0-9])) ?"
    r"(?:\{ ?(?P<c>[0-9]+) ?\}|(?P<d>[0-9]))"
    r"|(?P<e>[0-9]+) ?/ ?(?P<f>[0-9]+))"
)
_MIXED = rf"(?:(?P<whole>[0-9]+)(?: |(?=\\)))?{_FRACTION}"
_WORD = (
    r"(?:[^\W\d_]+(?:[.'\N{RIGHT SINGLE QUOTATION MARK}-][^\W\d_]+)*"
    r"(?: ?\^ ?(?:[0-9]|\{ ?-?[0-9] ?\})|[\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}])?"
    r"|\N{DEGREE SIGN}[CF]?|\$)"
)
_BETWEEN = r"(?: ?(?:/|\\cdot|\N{MIDDLE DOT}) ?| )"
_ANSWER = re.compile(
    rf"(?:{_LABEL} ?)?{_CURRENCY}? ?(?P<sign>[-+]|(?i:minus|negative))? ?{_CURRENCY}? ?"
    rf"(?:{_MIXED}|(?P<plain>{_PLAIN}))"
    rf"(?P<unit>[ -]?(?:/ ?)?{_WORD}(?:{_BETWEEN}{_WORD})*)?\.?"
)

_CHANGING = frozenset(
    "or than not to minus plus times percent percentage cent maybe isn wrong below "
    "half halves third thirds fourths fifth fifths tenth tenths tens dozen dozens score "
    "hundred hundreds thousand thousands million millions billion billions trillion trillions "
    "bn mn mil zero one two three four five six seven eight nine ten eleven twelve thirteen "
    "fourteen fifteen sixteen seventeen eighteen nineteen twenty thirty forty fifty sixty seventy "
    "eighty ninety".split()
)
"""Words beside a number that make it another one, or one of several."""
_LETTERS = frozenset("mgshlLNJWVACFdt")
"""Letters that are units; others are variables or scales, as in 5x and 5k."""
_DIGITS = "0123456789\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE}"
_POWERS = ("squared", "cubed")
"""Beside a number and not after a unit, they change it."""


@lru_cache(maxsize=1024)  # all samples of a group have the same solution
def parse_number(text: str) -> Fraction | None:
    """The one number in `text`, exactly; None if there is none, or any doubt which it is."""
    if len(text) > MAX_ANSWER_CHARS:
        return None
    text = _without_formatting(text)
    if any(c.isnumeric() and c not in _DIGITS for c in text):
        return None
    found = _ANSWER.fullmatch(text)
    if found is None or _changes(found["unit"] or "") or found["name"] in _CHANGING:
        return None
    value = _value(found)
    return -value if value and (found["sign"] or "+")[0] in "-mMnN" else value


def _without_formatting(text: str) -> str:
    text = "".join("$" if unicodedata.category(c) == "Sc" else c for c in text)
    text = _COLOUR.sub("", text)
    for _ in range(_NESTED):
        text = _FORMATTED.sub(r" \1 ", text)
    for pattern, replacement in _FORMATTING:
        text = pattern.sub(replacement, text.strip())
    text = text.strip()
    return text[1:-1].strip() if text.startswith("{") and text.endswith("}") else text


def _changes(unit: str) -> bool:
    """Whether what stands after a number changes it, or may."""
    words = re.findall(r"[^\W\d_]+", unit)
    if words and words[0].lower() in _POWERS:
        return True
    return any(
        word not in _LETTERS if len(word) == 1 else word.lower() in _CHANGING for word in words
    )


def _value(found: re.Match[str]) -> Fraction | None:
    if plain := found["plain"]:
        return Fraction(plain.replace(",", "").replace(" ", ""))
    top = int(found["a"] or found["b"] or found["e"])
    bottom = int(found["c"] or found["d"] or found["f"])
    whole = found["whole"]
    if not bottom or (whole is not None and top >= bottom):
        return None
    return int(whole or 0) + Fraction(top, bottom)
