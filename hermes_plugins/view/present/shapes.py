"""Values of a record nobody has validated: as they ought to be, or bounded and as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from hermes_queue.terminal.escapes import visible

DEPTH_MOST = 64
STRING_MOST = 4096
"""Characters of one string in a tree."""
NODES_MOST = 5000
CHARACTERS_MOST = 256 << 10
_KEY_MOST = 200
_EXACT = 2**53
"""Integers above it are not exact in JavaScript, so they are shown as text."""


def mapping(value: object) -> Mapping[Any, Any]:
    """`value` if it is a map, else an empty one."""
    return value if isinstance(value, Mapping) else {}


def items(value: object) -> Sequence[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list | tuple) else ()


def number(value: object) -> int | float | None:
    """`value` if it is a finite number that JSON can hold, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, int):
        return value if abs(value) <= _EXACT else None
    return value if math.isfinite(value) else None


def whole(value: object) -> int | None:
    """`value` if it is an integer that JSON can hold, else None."""
    found = number(value)
    return found if isinstance(found, int) else None


def numbers_of(value: object, most: int = 100) -> dict[str, int | float]:
    """The numbers in a map of names to numbers, such as rewards or seconds of stages."""
    found: dict[str, int | float] = {}
    for name, each in mapping(value).items():
        if len(found) >= most:
            break
        if (known := number(each)) is not None:
            found[_key(name)] = known
    return found


def tree(value: object) -> Any:
    """`value` as JSON can hold it, for a page that shows it as a tree.

    Texts have visible signs for what would deceive, and are cut; so are lists, maps and depth. The
    last element of a list or map that was cut says how many are missing. Bytes and packed arrays
    are described or listed; numbers that JSON or JavaScript cannot hold become text.
    """
    return _Pruned().of(value, 0)


def as_json(value: object, *, indent: int | None = 2) -> str:
    """`tree(value)` as JSON text."""
    return json.dumps(tree(value), ensure_ascii=False, indent=indent, allow_nan=False)


class _Pruned:
    """One pass over a value, with what it may still take."""

    def __init__(self) -> None:
        self._nodes = NODES_MOST
        self._characters = CHARACTERS_MOST

    def of(self, value: object, depth: int) -> Any:
        self._nodes -= 1
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, int | float):
            return _number(value)
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, Mapping | list | tuple) and depth >= DEPTH_MOST:
            return "… (nested too deep)"
        if isinstance(value, Mapping):
            return self._mapping(value, depth)
        if isinstance(value, bytes | bytearray | memoryview):
            return f"({len(value)} bytes)"
        if isinstance(value, Sequence):  # a list, a tuple or a packed array
            return self._list(value, depth)
        return self._string(type(value).__name__)

    def _string(self, value: str) -> str:
        room = max(0, min(STRING_MOST, self._characters))
        self._characters -= min(len(value), room)
        shown = visible(value[:room])
        left_out = len(value) - room
        return f"{shown}… ({left_out} more characters)" if left_out > 0 else shown

    def _list(self, value: Sequence[Any], depth: int) -> list[Any]:
        found = [self.of(each, depth + 1) for each in self._within(value)]
        if len(found) < len(value):
            found.append(f"… ({len(value) - len(found)} more)")
        return found

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        taken = 0
        for name in self._within(value):
            key = _key(name)
            if key in found:  # two names that are shown alike
                key = f"{key} ({taken})"
            found[key] = self.of(value[name], depth + 1)
            taken += 1
        if taken < len(value):
            found["…"] = f"{len(value) - taken} more"
        return found

    def _within(self, elements: Iterable[Any]) -> Iterable[Any]:
        for each in elements:
            if self._nodes <= 0 or self._characters <= 0:
                return
            yield each


def _number(value: int | float) -> int | float | str:
    if isinstance(value, int):
        if abs(value) <= _EXACT:
            return value
        return str(value) if value.bit_length() <= 1024 else f"({value.bit_length()} bits)"
    return value if math.isfinite(value) else str(value)


def _key(name: object) -> str:
    text = name if isinstance(name, str) else repr(name)[: _KEY_MOST + 1]
    cut = visible(text[:_KEY_MOST])
    return f"{cut}…" if len(text) > _KEY_MOST else cut
