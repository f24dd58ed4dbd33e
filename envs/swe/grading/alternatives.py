"""Other values, texts and exceptions for a test to expect, written like the original.

The alternatives of one *spot* differ from the original, and from each other, in the same few
characters. So comparing some of them does not reveal the original to somebody who does not know
the right answer: none is more similar to the others than the rest.
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
"""Length from which a changed digit makes a text unlikely to occur in an honest message."""
MAX_ALIKE = 24
"""Replacements for one word: more than views need; a long file has thousands of candidates."""
_RARE_EXCEPTIONS = (
    "BufferError EOFError MemoryError RecursionError StopAsyncIteration UnboundLocalError "
    "ZeroDivisionError"
).split()
"""Builtin exceptions that nobody combines with others by inheritance."""
_LOOKUPS = frozenset(("AttributeError", "IndexError", "KeyError", "LookupError"))
_NO_LOOKUPS = ("NotImplementedError", "OSError")
"""Exceptions that code raises when it refuses a lookup, and that nobody combines with those."""


def other_values(literal: bytes, words: Collection[str]) -> list[list[bytes]]:
    """Spots of a constant: other constants with the same quotes, prefix, base and case.

    Words are replaced by others of `words`: an invented word would occur nowhere else.
    """
    text = literal.decode()
    value = _value(text)
    if value is None or isinstance(value, bool):
        return [[repr(v).encode() for v in ((None,) if value is not None else (True, False))]]
    spots = [_replaced(text, match, string.digits) for match in re.finditer(r"\d", text)]
    if isinstance(value, str | bytes):
        spots += [_replaced(text, match, _alike(match[0], words)) for match in _words(text)]
    return _kept(spots, value)


def other_texts(literal: bytes, words: Collection[str], *, regex: bool) -> list[list[bytes]]:
    """Spots of a text that is searched for in a message: texts that no honest message contains.

    Two letters of a word are changed, so that it is no longer a word, nor one of the file's
    `words`; an honest message might contain any real word. A `regex` that leaves choices has no
    spots.
    """
    text = literal.decode()
    value = _value(text)
    if not isinstance(value, str):
        return []
    if regex and _REGEX_CHOICES.search(re.sub(r"\\.|\.[*+]", "", value)):
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
    """Classes that a test may expect instead; no honest exception is an instance of both."""
    expected = getattr(builtins, name, None)
    others = [*_RARE_EXCEPTIONS, *(_NO_LOOKUPS if name in _LOOKUPS else ())]
    made = [other.encode() for other in others if other != name and not _related(other, expected)]
    return [made] if made else []


def _related(name: str, expected: object) -> bool:
    """Whether two builtin exceptions have more in common than being exceptions."""
    if not isinstance(expected, type):
        return False
    common = {*getattr(builtins, name).__mro__} & {*expected.__mro__}
    return bool(common - {Exception, BaseException, object}) or expected in common


def _alike(word: str, words: Collection[str]) -> list[str]:
    """Words of the same case, those of similar length first."""
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
    """The word with two consonants replaced by others; unchanged if it has fewer than two."""
    if len(letters) < 2:
        return word
    made = list(word)
    for at in letters:
        consonants = _CONSONANTS if word[at].islower() else _CONSONANTS.upper()
        made[at] = consonants[(consonants.index(word[at]) + turn) % len(consonants)]
    return "".join(made)


def _case(word: str) -> str:
    return "lower" if word.islower() else "upper" if word.isupper() else "mixed"


def _value(text: str) -> object:
    """The value of a literal; Ellipsis for anything else."""
    try:
        return literal_value(text)
    except (ValueError, SyntaxError):
        return ...


def _differs(text: str, value: object) -> bool:
    """Whether it is another value of this type; not with a leading zero, which nobody writes."""
    other = _value(text)
    return type(other) is type(value) and other != value and not re.match(r"0[\d_]", text)
