"""Characters that nobody sees, or that change how others are read, as visible signs.

Controls of ASCII become their pictures (`␛`), the rest its number (`⟨U+202E⟩`), a row of equal
ones one sign with their number (`⟨U+200B x40⟩`), half of a surrogate pair U+FFFD. Line feeds and
tabs remain as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from itertools import groupby
from reprlib import Repr
from typing import Any

INVISIBLE = (
    "\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f"  # C0 without tab, LF, CR and ESC; DEL; C1
    "\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"
    "\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f"  # zero width, line separators, bidirectional
    "\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"  # tags and further variation selectors
)
"""Part of a character class. Everything that Unicode calls a control, a format character, a
surrogate or a line separator, and letters without a shape."""
ROW = f"[{INVISIBLE}]+|(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]+"
"""A pattern of such characters. One variation selector is part of an emoji, several hide a text."""
_ANY = re.compile(f"\r\n?|\x1b|{ROW}")
_SPELLED_MOST = 3
"""Equal characters in a row that are shown one by one."""
RETURN = "␍\n"
"""A carriage return without line feed: a terminal would write over the line."""
LABEL_MOST = 200
_LONG = 1 << 16
"""Longer texts are translated character by character, which takes a twentieth of the time where
hardly anything else is in them; rows of equal ones are then spelled out."""
_SELECTORS = re.compile("(?<=[\ufe00-\ufe0f])[\ufe00-\ufe0f]+")


def sign(character: str) -> str:
    """What is shown in place of one such character."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if 0xD800 <= code <= 0xDFFF else f"⟨U+{code:04X}⟩"


def signs(row: str) -> str:
    """What is shown in place of a row of such characters."""
    if len(row) <= _SPELLED_MOST:
        return "".join(map(sign, row))
    return "".join(_repeated(each, sum(1 for _ in equal)) for each, equal in groupby(row))


def _repeated(character: str, times: int) -> str:
    shown = sign(character)
    if times <= _SPELLED_MOST:
        return shown * times
    return f"⟨{shown.strip('⟨⟩')} x{times}⟩"


class _Brief(Repr):
    """Texts of values that ought to be names: bounded in time, whatever they hold, and how deep."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxstring, self.maxother, self.maxlong = 3, LABEL_MOST, LABEL_MOST, 100
        self.maxlist = self.maxtuple = self.maxdict = 8

    def repr_instance(self, x: Any, level: int) -> str:
        if isinstance(x, Sequence) and not isinstance(x, bytes):  # a packed array
            return self.repr1(list(x[: self.maxlist + 1]), level)
        return super().repr_instance(x, level)

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:LABEL_MOST])


_brief = _Brief()


def visible(text: str) -> str:
    """`text` with a sign for each character that would deceive; escape sequences are not obeyed.

    The result has no control but line feeds and tabs, and no half of a surrogate pair.
    """
    if len(text) <= _LONG:
        return _ANY.sub(_shown, text)
    single = _SELECTORS.sub(_shown, text.replace("\r\n", "\n"))
    return single.translate(_table())


def label(value: object, most: int = LABEL_MOST) -> str:
    """A name on one line, of at most about `most` characters: ids, roles, models, paths."""
    text = value if isinstance(value, str) else "" if value is None else _brief.repr(value)
    cut = visible(text[:most]).replace("\n", "␊").replace("\t", "␉")
    return f"{cut}…" if len(text) > most else cut


def known_label(value: object) -> str | None:
    """`label`, or None where there is no value."""
    return None if value is None else label(value)


@cache
def _table() -> dict[int, str]:
    invisible = re.compile(f"[{INVISIBLE}]")
    spaces = (range(0x20000), range(0xE0000, 0xE1000))
    characters = [chr(code) for space in spaces for code in space]
    found = {ord(each): sign(each) for each in characters if invisible.match(each)}
    return {**found, ord("\x1b"): sign("\x1b"), ord("\r"): RETURN}


def _shown(found: re.Match[str]) -> str:
    row = found[0]
    if row[0] == "\r":
        return "\n" if len(row) == 2 else RETURN
    return signs(row)
