"""What a process remembers of endpoints. Jobs may name ever new ones, so it is bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

KEPT = 256
"""Endpoints, with their keys, models and limits, of which a process keeps something."""

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A cache that keeps the values used last (LRU).

    A value that it forgets lives on for as long as somebody still uses it.
    """

    def __init__(self, most: int = KEPT) -> None:
        self._most = most
        self._values: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: K) -> V | None:
        """The value, which is thereby used; None = it is not kept."""
        found = self._values.get(key)
        if found is not None:
            self._values.move_to_end(key)
        return found

    def keep(self, key: K, value: V) -> V:
        """Keep it; without room, forget the one that was not used for the longest time."""
        self._values[key] = value
        self._values.move_to_end(key)
        while len(self._values) > self._most:
            self._values.popitem(last=False)
        return value

    def clear(self) -> None:
        """Forget all."""
        self._values.clear()
