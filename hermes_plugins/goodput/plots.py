"""Plots as inline SVG, without script; every text in them is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT = 640, 160
_LEFT, _TOP, _BOTTOM = 44, 8, 22
_ROW = 22
_COLUMN_MOST = 40
_LABEL = 150
_BEHIND = 170
"""Room for the text behind a bar."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One kind of values, of which each column has one."""

    name: str
    style: str
    """A class of the page's style sheet."""
    values: Sequence[float]


@dataclass(frozen=True, slots=True)
class Bar:
    """One horizontal bar."""

    label: str
    value: float
    text: str
    """Behind it."""
    style: str = "work"
    """A class of the page's style sheet."""


def columns(title: str, layers: Sequence[Layer], ends: tuple[str, str]) -> str:
    """Stacked columns; `ends` are the labels below the first and the last one."""
    totals = [sum(parts) for parts in zip(*(layer.values for layer in layers), strict=True)]
    most = max(totals, default=0.0) or 1.0
    step = (_WIDTH - _LEFT) / max(1, len(totals))
    width = min(_COLUMN_MOST, max(0.5, step - 1))
    room = _HEIGHT - _TOP - _BOTTOM
    parts, base = [], [0.0] * len(totals)
    for layer in layers:
        for n, value in enumerate(layer.values):
            height = room * max(0.0, value) / most
            if height > 0:
                y = _HEIGHT - _BOTTOM - base[n] - height
                hint = f"{layer.name}: {value:.6g}"
                x = _LEFT + (n + 0.5) * step - width / 2
                parts.append(_box(layer.style, x, y, width, height, hint))
            base[n] += height
    return _framed(title, layers, [*parts, *_axis(f"{most:.4g}", ends)])


def line(title: str, layer: Layer, ends: tuple[str, str], *, most: float | None = None) -> str:
    """A line through the middle of each interval; NaN is a gap."""
    known = [value for value in layer.values if value == value]
    top = most or max(known, default=0.0) or 1.0
    step = (_WIDTH - _LEFT) / max(1, len(layer.values))
    room = _HEIGHT - _TOP - _BOTTOM
    pieces: list[list[str]] = [[]]
    for n, value in enumerate(layer.values):
        if value != value:
            pieces.append([])
            continue
        y = _HEIGHT - _BOTTOM - room * min(1.0, max(0.0, value / top))
        pieces[-1].append(f"{_LEFT + (n + 0.5) * step:.1f},{y:.1f}")
    drawn = []
    for points in filter(None, pieces):
        if len(points) == 1:
            cx, cy = points[0].split(",")
            drawn.append(f'<circle class="{layer.style}" cx="{cx}" cy="{cy}" r="3"/>')
        else:
            drawn.append(f'<polyline class="line {layer.style}" points="{" ".join(points)}"/>')
    return _framed(title, [layer], [*drawn, *_axis(f"{top:.4g}", ends)])


def bars(title: str, rows: Sequence[Bar]) -> str:
    """Horizontal bars that all begin at the left."""
    most = max((row.value for row in rows), default=0.0)
    return _horizontal(title, rows, most, is_falling=False)


def waterfall(title: str, rows: Sequence[Bar]) -> str:
    """Bars that each begin where the one before has ended: parts of a whole."""
    return _horizontal(title, rows, sum(max(0.0, row.value) for row in rows), is_falling=True)


def _horizontal(title: str, rows: Sequence[Bar], whole: float, *, is_falling: bool) -> str:
    """`whole` is the value that fills the room."""
    room, at = _WIDTH - _LABEL - _BEHIND, 0.0
    parts = []
    for n, row in enumerate(rows):
        y, width = n * _ROW + 2, room * max(0.0, row.value) / (whole or 1.0)
        middle = y + _ROW / 2 + 2
        visible = max(1.0, width) if is_falling or row.value > 0 else width
        hint = f"{row.label}: {row.text}"
        parts.append(_text(_LABEL - 6, middle, row.label[:40], "end"))
        parts.append(_box(row.style, _LABEL + at, y, visible, _ROW - 5, hint))
        parts.append(_text(_LABEL + at + width + 6, middle, row.text, "start"))
        at += width if is_falling else 0.0
    return _svg(title, parts, _ROW * len(rows) + 4)


def _box(style: str, x: float, y: float, width: float, height: float, hint: str) -> str:
    return (
        f'<rect class="{style}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{escape(hint)}</title></rect>"
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _axis(top: str, ends: tuple[str, str]) -> list[str]:
    floor = _HEIGHT - _BOTTOM
    return [
        f'<path class="axis" d="M{_LEFT} {_TOP}V{floor}H{_WIDTH}"/>',
        _text(_LEFT - 4, _TOP + 8, top, "end"),
        _text(_LEFT - 4, floor, "0", "end"),
        _text(_LEFT, _HEIGHT - 6, ends[0], "start"),
        _text(_WIDTH, _HEIGHT - 6, ends[1], "end"),
    ]


def _framed(title: str, layers: Sequence[Layer], parts: Sequence[str]) -> str:
    names = "".join(
        f'<span><i class="{layer.style}"></i>{escape(layer.name)}</span>' for layer in layers
    )
    return f'{_svg(title, parts, _HEIGHT)}<p class="legend">{names}</p>'


def _svg(title: str, parts: Sequence[str], height: float) -> str:
    return (
        f'<svg role="img" aria-label="{escape(title)}" viewBox="0 0 {_WIDTH} {height:.0f}">'
        f"{''.join(parts)}</svg>"
    )
