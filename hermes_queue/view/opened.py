"""Records that are open: the last two, since one page asks for parts of the same one."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

K = TypeVar("K")
KEPT = 2
AT_ONCE = 2
"""Records that are decoded at the same time; each may take a gigabyte."""

Raw = Mapping[str, Any]


class Opened(Generic[K]):
    """Reads records, and keeps the last ones. Thread-safe.

    Args:
        read: returns the record of a key; may raise.
    """

    def __init__(self, read: Callable[[K], Raw]) -> None:
        self._read = read
        self._kept: OrderedDict[K, Raw] = OrderedDict()
        self._lock = threading.Lock()
        self._reading: dict[K, threading.Lock] = {}
        self._slots = threading.BoundedSemaphore(AT_ONCE)

    def get(self, key: K) -> Raw:
        """The record; those who ask for the same one at once wait for one reading.

        Raises:
            Exception: whatever `read` raises.
        """
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            turn = self._reading.setdefault(key, threading.Lock())
        with turn:
            with self._lock:
                if key in self._kept:
                    return self._kept[key]
            try:
                with self._slots:
                    found = self._read(key)
            finally:
                with self._lock:
                    self._reading.pop(key, None)
            with self._lock:
                self._kept[key] = found
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
            return found
