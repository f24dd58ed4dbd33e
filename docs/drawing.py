"""A few shapes as SVG text: boxes, arrows, bars on a time line; for light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

STYLE = """\
text { font: 13px sans-serif; text-anchor: middle; fill: #1f2933 }
.title { font-weight: bold }
.note { font-size: 12px; fill: #52606d }
.left { text-anchor: start }
.right { text-anchor: end }
.halo { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
.page { fill: #ffffff }
.box { fill: #eef2f7; stroke: #7b8794 }
.redis { fill: #fdecea; stroke: #b4493d }
.worker { fill: #e6f4ea; stroke: #3c7a4b }
.end { fill: #fff4d6; stroke: #a07a1c }
.line { fill: none; stroke: #52606d; stroke-width: 1.4 }
.faint { fill: none; stroke: #9aa5b1; stroke-width: 1 }
.dashed { stroke-dasharray: 5 4 }
.tip { fill: #52606d }
@media (prefers-color-scheme: dark) {
  text { fill: #e4e7eb }
  .note { fill: #b3bcc6 }
  .halo { stroke: #1b2028 }
  .page { fill: #1b2028 }
  .box { fill: #2b323d; stroke: #8793a1 }
  .redis { fill: #46272a; stroke: #d98075 }
  .worker { fill: #21382a; stroke: #77b389 }
  .end { fill: #40371f; stroke: #c9a552 }
  .line { stroke: #b3bcc6 }
  .faint { stroke: #5f6b79 }
  .tip { fill: #b3bcc6 }
}
"""
TIP = (
    '<marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path class="tip" d="M0 0 10 5 0 10z"/></marker>'
)


class Picture:
    """One drawing; shapes appear in the order in which they are added. Lengths are pixels."""

    def __init__(self, width: int, height: int, description: str) -> None:
        self.width, self.height, self.description = width, height, description
        self._shapes: list[str] = []

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        """One line of text with its baseline at `y`."""
        self._shapes.append(f'<text x="{x:g}" y="{y:g}"{_class(style)}>{escape(text)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, *lines: str, style: str = "box"
    ) -> None:
        """A rectangle; the first of `lines` is its title, all are centred."""
        self._shapes.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="7"'
            f"{_class(style)}/>"
        )
        top = y + height / 2 - 8 * (len(lines) - 1) + 4.5
        for number, line in enumerate(lines):
            self.text(x + width / 2, top + 16 * number, line, "note" if number else "title")

    def frame(
        self, x: float, y: float, width: float, height: float, title: str, style: str
    ) -> None:
        """A rectangle around others, with its title at the top."""
        self.box(x, y, width, height, style=style)
        self.text(x + width / 2, y + 20, title, "title")

    def path(
        self, path: str, style: str = "line", *, start: bool = False, end: bool = True
    ) -> None:
        """An SVG path, with an arrow's tip at its end, its start or both."""
        tips = ' marker-start="url(#tip)"' * start + ' marker-end="url(#tip)"' * end
        self._shapes.append(f'<path d="{path}"{_class(style)}{tips}/>')

    def bar(self, x1: float, x2: float, y: float, text: str, style: str) -> None:
        """A bar of 26 pixels from `x1` to `x2` on a time line."""
        self._shapes.append(
            f'<rect x="{x1:g}" y="{y:g}" width="{x2 - x1:g}" height="26" rx="5"{_class(style)}/>'
        )
        self.text((x1 + x2) / 2, y + 17.5, text)

    def notes(self, x: float, y: float, lines: Sequence[str], style: str = "note left") -> None:
        """Lines of small text, 16 pixels apart."""
        for number, line in enumerate(lines):
            self.text(x, y + 16 * number, line, style)

    def render(self) -> str:
        """The picture as an SVG document."""
        label = escape(self.description, quote=True)
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img" aria-label="{label}">',
                f"<style>\n{STYLE}</style>",
                f"<defs>{TIP}</defs>",
                f'<rect class="page" width="{self.width}" height="{self.height}" rx="10"/>',
                *self._shapes,
                "</svg>\n",
            ]
        )


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""
