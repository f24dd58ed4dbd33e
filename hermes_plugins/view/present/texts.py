"""Long texts of a record, as pages and terminals show them: the API's *text*."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypedDict

from hermes_plugins.view.present.ansi import PLAIN, SgrStyle
from hermes_plugins.view.present.shapes import as_json
from hermes_queue.terminal.escapes import INVISIBLE, RETURN, ROW, signs, visible

WHOLE_BYTES = 8 << 20
"""Most of one text that is ever shown; the record as a file has all of it."""
MARKS_MOST = 4096
"""Of one text. Behind the last one colours are dropped; signs remain, without marks."""
_SEQUENCES_MOST = 4 * MARKS_MOST
"""Escape sequences and rows of such characters of one text for which the same holds."""
CONTROL = "ctl"
"""Class of the signs for characters that would deceive."""

TextMark = tuple[int, int, str]
"""Start and end in UTF-16 code units, and one class. Marks may nest."""


class ShownText(TypedDict):
    """A text as the API has it."""

    text: str
    bytes: int
    """Size of the whole in the record, as UTF-8."""
    cut: bool
    """Whether only its beginning is shown."""
    marks: list[TextMark]


_SGR = "\x1b\\[([0-9;:]{0,64})m"
_SPECIAL = re.compile(f"{_SGR}|(\x1b\\[[0-?]{{0,64}}[ -/]{{0,8}}[@-~]|\x1b)|(\r\n)|(\r)|({ROW})")
_FIRST = re.compile(f"[\x1b\r{INVISIBLE}\ufe00-\ufe0f]")
"""What `_SPECIAL` begins with: a class alone is searched for far faster than alternatives."""
_FIRST_OF_ASCII = re.compile("[\x00-\x08\x0b-\x1f\x7f]")
_SGR_ALONE = re.compile(_SGR)
_HALF_SEQUENCE = re.compile("\x1b(?:\\[[0-?]{0,64}[ -/]{0,8})?$")


def text_of(value: object, cut_bytes: int = WHOLE_BYTES) -> ShownText:
    """A text, or any other value as JSON: at most `cut_bytes` of it as UTF-8, cut at a character.

    ANSI colours and weights are in `marks`, see `hermes_plugins.view.present.ansi`. Other escape
    sequences, controls, bidirectional and invisible characters are in the text as visible signs and
    have the class `ctl`. The size of what is returned is bounded by a multiple of `cut_bytes`.
    """
    whole = value if isinstance(value, str) else "" if value is None else as_json(value)
    size = len(whole) if whole.isascii() else len(whole.encode(errors="surrogatepass"))
    most = max(0, min(cut_bytes, WHOLE_BYTES))
    shown = whole
    if size > most:
        beginning = whole[:most].encode(errors="surrogatepass")[:most]
        shown = _HALF_SEQUENCE.sub("", _decoded(beginning))
    text, marks = _marked(shown)
    return {"text": text, "bytes": size, "cut": size > most, "marks": marks}


def _decoded(beginning: bytes) -> str:
    """The text of bytes that may end within a character."""
    for end in range(len(beginning), max(-1, len(beginning) - 4), -1):
        try:
            return beginning[:end].decode(errors="surrogatepass")
        except UnicodeDecodeError:
            continue
    return beginning.decode(errors="replace")


def _marked(text: str) -> tuple[str, list[TextMark]]:
    written = _Written()
    read = 0
    for count, found in enumerate(_specials(text)):
        written.plain(text[read : found.start()])
        if len(written.marks) >= MARKS_MOST or count >= _SEQUENCES_MOST:
            written.turn(PLAIN)
            read = found.start()
            break
        read = found.end()
        colours, sequence, line_end, carriage, row = found.groups()
        if colours is not None:
            written.turn(written.style.after(colours))
        elif line_end:
            written.plain("\n")
        elif carriage:
            written.marked(RETURN)
        else:
            written.marked(f"␛{sequence[1:]}" if sequence else signs(row))
    else:
        if not read:
            return text, []
    written.plain(visible(_SGR_ALONE.sub("", text[read:])))
    written.turn(PLAIN)
    return "".join(written.parts), sorted(written.marks, key=lambda mark: (mark[0], -mark[1]))


def _specials(text: str) -> Iterator[re.Match[str]]:
    """What `_SPECIAL.finditer` finds, in a fraction of its time where there is little of it."""
    first = _FIRST_OF_ASCII if text.isascii() else _FIRST
    at = 0
    while (begin := first.search(text, at)) is not None:
        found = _SPECIAL.match(text, begin.start())
        if found is not None:
            yield found
        at = begin.end() if found is None else found.end()


class _Written:
    """What has been written so far, and where its marks are."""

    def __init__(self) -> None:
        self.parts: list[str] = []
        self.marks: list[TextMark] = []
        self.style: SgrStyle = PLAIN
        self._at = 0
        self._since = 0
        """Where the style began."""

    def plain(self, text: str) -> None:
        if text:
            self.parts.append(text)
            self._at += utf16_units(text)

    def marked(self, shown: str) -> None:
        begun = self._at
        self.plain(shown)
        last = self.marks[-1] if self.marks else None
        if last and last[1:] == (begun, CONTROL):
            self.marks[-1] = (last[0], self._at, CONTROL)
        else:
            self.marks.append((begun, self._at, CONTROL))

    def turn(self, style: SgrStyle) -> None:
        if style == self.style:
            return
        if self._since < self._at:
            self.marks += [(self._since, self._at, name) for name in self.style.classes()]
        self.style, self._since = style, self._at


def utf16_units(text: str) -> int:
    """Length in UTF-16 code units, in which pages count."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2
