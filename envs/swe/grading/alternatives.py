"""What a test may expect instead: values, texts and exceptions, written like the original.

The alternatives of one *spot* differ from the original, and from each other, in the same few
characters. So whoever sees some of them without knowing the right answer cannot tell which of them
is the original by comparing them: none is more like the others than the rest.
"""

from __future__ import annotations

import builtins
import re
import string
from collections.abc import Collection

from hermes_queue.syntax import literal as literal_value

_CONSONANTS = "bdfgklmnprtvz"
_REGEX_CHOICES = re.compile(r"[|\[?{*+(]")
MIN_DIGITS_TEXT = 5
"""Shorter text with another digit may well be said as well."""
MAX_ALIKE = 24
"""Words that may stand in for one: more than views need, and a long file has thousands."""
_RARE_EXCEPTIONS = (
    "BufferError EOFError MemoryError RecursionError StopAsyncIteration UnboundLocalError "
    "ZeroDivisionError"
).split()
"""Builtin classes from which, together with others, nobody derives an exception."""
_LOOKUPS = frozenset(("AttributeError", "IndexError", "KeyError", "LookupError"))
_NO_LOOKUPS = ("NotImplementedError", "OSError")
"""What code raises that refuses to look something up, and nobody joins with those."""


def other_values(literal: bytes, words: Collection[str]) -> list[list[bytes]]:
    """Spots of a constant: other ones, with the same quotes, prefix, base and case.

    Args:
        literal: as the source has it.
        words: what a word may be replaced by. A made-up one would be found nowhere else.
    """
    try:
        text, value = literal.decode(), literal_value(literal.decode())
    except (ValueError, SyntaxError):
        return []
    if value is None or isinstance(value, bool):
        return [[repr(v).encode() for v in ((None,) if value is not None else (True, False))]]
    spots = [_replaced(text, match, string.digits) for match in re.finditer(r"\d", text)]
    if isinstance(value, str | bytes):
        for match in _words(text):
            spots.append(_replaced(text, match, _alike(match[0], words)))
    return _kept(spots, value)


def other_texts(literal: bytes, words: Collection[str], *, regex: bool) -> list[list[bytes]]:
    """Spots of a text that is looked for in another: texts that no message has beside this one.

    Two letters of a word are others, so that it is no word any more: any real word might stand in
    an honest message, too.

    Args:
        literal: as the source has it.
        words: of the file; none of them is made.
        regex: whether it is a regular expression. One that leaves choices has no spots.
    """
    try:
        text, value = literal.decode(), literal_value(literal.decode())
    except (ValueError, SyntaxError):
        return []
    if not isinstance(value, str) or (regex and _leaves_choices(value)):
        return []
    spots = []
    for match in _words(text):
        letters = [at for at, letter in enumerate(match[0]) if letter.lower() in _CONSONANTS]
        made = [_misspelt(match[0], letters[:2], turn) for turn in range(1, len(_CONSONANTS))]
        spots.append(_replaced(text, match, [word for word in made if word not in words]))
    if len(value) >= MIN_DIGITS_TEXT and not any(spots):
        spots = [_replaced(text, match, string.digits) for match in re.finditer(r"\d", text)]
    return _kept(spots, value)


def other_exceptions(name: str) -> list[list[bytes]]:
    """Classes that a test may expect instead: no honest exception is both."""
    wanted = getattr(builtins, name, None)
    others = [*_RARE_EXCEPTIONS, *(_NO_LOOKUPS if name in _LOOKUPS else ())]
    made = [other.encode() for other in others if other != name and not _related(other, wanted)]
    return [made] if made else []


def _related(name: str, wanted: object) -> bool:
    """Whether two builtin exceptions have more in common than that they are exceptions."""
    if not isinstance(wanted, type):
        return False
    common = {*getattr(builtins, name).__mro__} & {*wanted.__mro__}
    return bool(common - {Exception, BaseException, object}) or wanted in common


def _alike(word: str, words: Collection[str]) -> list[str]:
    """Words of the same case, those of about the same length before others."""
    alike = [other for other in words if other != word and _case(other) == _case(word)]
    return sorted(alike, key=lambda other: (abs(len(other) - len(word)), other))[:MAX_ALIKE]


def _words(text: str) -> list[re.Match[str]]:
    return list(re.finditer(r"(?<![\\A-Za-z])[A-Za-z]{3,}", text))


def _replaced(text: str, match: re.Match[str], others: Collection[str]) -> list[str]:
    return [text[: match.start()] + o + text[match.end() :] for o in others if o != match[0]]


def _kept(spots: list[list[str]], value: object) -> list[list[bytes]]:
    made = [[each.encode() for each in spot if _differs(each, value)] for spot in spots]
    return [spot for spot in made if spot]


def _misspelt(word: str, letters: list[int], turn: int) -> str:
    """The word with these consonants, two, turned to others; itself if it has fewer."""
    if len(letters) < 2:
        return word
    made = list(word)
    for at in letters:
        consonants = _CONSONANTS if word[at].islower() else _CONSONANTS.upper()
        made[at] = consonants[(consonants.index(word[at]) + turn) % len(consonants)]
    return "".join(made)


def _leaves_choices(pattern: str) -> bool:
    plain = re.sub(r"\\.|\.[*+]", "", pattern)
    return bool(_REGEX_CHOICES.search(plain))


def _case(word: str) -> str:
    return "lower" if word.islower() else "upper" if word.isupper() else "mixed"


def _differs(text: str, value: object) -> bool:
    try:
        other = literal_value(text)
    except (ValueError, SyntaxError):
        return False
    return type(other) is type(value) and other != value
