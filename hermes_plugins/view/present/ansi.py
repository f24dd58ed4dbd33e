"""Colours and weights of terminals as names of classes: the escape sequences SGR, nothing else.

There are 16 colours in the foreground (`ansi-fg-0` to `ansi-fg-15`) and as many behind (`ansi-bg-0`
to `ansi-bg-15`), in the order of terminals: black, red, green, yellow, blue, magenta, cyan, white,
and the same bright. Those of the palette of 256 and of 24 bits become the nearest of them. The
others are `ansi-bold`, `ansi-dim`, `ansi-italic`, `ansi-underline`, `ansi-inverse` and
`ansi-strike`. Text that a terminal would hide or blink is shown like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, lru_cache

PARAMETERS_MOST = 32
"""Parameters of one sequence that are obeyed."""

_PALETTE = (
    *((0, 0, 0), (205, 0, 0), (0, 205, 0), (205, 205, 0)),
    *((0, 0, 238), (205, 0, 205), (0, 205, 205), (229, 229, 229)),
    *((127, 127, 127), (255, 0, 0), (0, 255, 0), (255, 255, 0)),
    *((92, 92, 255), (255, 0, 255), (0, 255, 255), (255, 255, 255)),
)
"""xterm's 16 colours."""
_LEVELS = (0, 95, 135, 175, 215, 255)
_SWITCHES = {1: "bold", 2: "dim", 3: "italic", 4: "underline", 7: "inverse", 9: "strike"}
_OFF = {
    **{21: ("bold",), 22: ("bold", "dim"), 23: ("italic",), 24: ("underline",)},
    **{27: ("inverse",), 29: ("strike",)},
}


@dataclass(frozen=True, slots=True)
class SgrStyle:
    """How the text after a sequence looks."""

    fg: int | None = None
    bg: int | None = None
    weights: frozenset[str] = frozenset()

    def classes(self) -> tuple[str, ...]:
        """The names of its classes. Text is never of the colour behind it, which would hide it."""
        found = [f"ansi-{name}" for name in sorted(self.weights)]
        if self.fg is not None:
            found.append(f"ansi-fg-{self.fg}")
        if self.bg is not None and self.bg != self.fg:
            found.append(f"ansi-bg-{self.bg}")
        return tuple(found)

    @lru_cache(maxsize=1024)  # noqa: B019 - it is immutable, and there are few
    def after(self, parameters: str) -> SgrStyle:
        """The style after `ESC [ parameters m`; what is unknown in it changes nothing."""
        style = self
        left = parameters.split(";", PARAMETERS_MOST)[:PARAMETERS_MOST]
        left.reverse()
        while left:
            word = left.pop()
            code, _, sub = word.partition(":")
            number = int(code) if code.isascii() and code.isdigit() else 0 if not code else -1
            if number in (38, 48):
                colour = _colon_colour(sub) if sub else _colour(left)
                if colour is not None and number == 38:
                    style = replace(style, fg=colour)
                elif colour is not None:
                    style = replace(style, bg=colour)
            elif number == 4 and sub == "0":
                style = style._without("underline")
            else:
                style = style._coded(number)
        return style

    def _coded(self, number: int) -> SgrStyle:
        if number == 0:
            return PLAIN
        if name := _SWITCHES.get(number):
            return replace(self, weights=self.weights | {name})
        if names := _OFF.get(number):
            return self._without(*names)
        tens, one = divmod(number, 10)
        if tens in (3, 9) and one < 8:
            return replace(self, fg=one + (8 if tens == 9 else 0))
        if tens in (4, 10) and one < 8:
            return replace(self, bg=one + (8 if tens == 10 else 0))
        if number == 39:
            return replace(self, fg=None)
        return replace(self, bg=None) if number == 49 else self

    def _without(self, *names: str) -> SgrStyle:
        return replace(self, weights=self.weights.difference(names))


PLAIN = SgrStyle()


def _colour(left: list[str]) -> int | None:
    """Take the parameters after 38 or 48 from the end of `left`."""
    kind = left.pop() if left else ""
    taken = [left.pop() for _ in range({"5": 1, "2": 3}.get(kind, 0)) if left]
    return _of(kind, taken)


def _colon_colour(sub: str) -> int | None:
    kind, *rest = sub.split(":")
    return _of(kind, rest[-3:] if kind == "2" else rest[:1])


def _of(kind: str, words: list[str]) -> int | None:
    values = [int(word) if word.isascii() and word.isdigit() else 0 for word in words]
    if any(value > 255 for value in values):
        return None
    if kind == "5" and len(values) == 1:
        return _of_palette(values[0])
    if kind == "2" and len(values) == 3:
        return _nearest(values[0] // 8, values[1] // 8, values[2] // 8)
    return None


@cache
def _of_palette(index: int) -> int:
    if index < 16:
        return index
    if index >= 232:
        grey = (8 + 10 * (index - 232)) // 8
        return _nearest(grey, grey, grey)
    red, rest = divmod(index - 16, 36)
    green, blue = divmod(rest, 6)
    return _nearest(*(_LEVELS[level] // 8 for level in (red, green, blue)))


@cache
def _nearest(red: int, green: int, blue: int) -> int:
    """The nearest of the 16 colours; the arguments are eighths, so that the cache is bounded."""
    here = (red * 8 + 4, green * 8 + 4, blue * 8 + 4)
    return min(
        range(16),
        key=lambda index: sum((a - b) ** 2 for a, b in zip(here, _PALETTE[index], strict=True)),
    )
