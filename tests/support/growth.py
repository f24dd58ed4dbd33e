"""Measures how the cost of a call grows with its input, independent of the machine's speed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

FACTOR = 8
LINEAR = 3 * FACTOR
"""A linear call's growth lies below this, a quadratic one's is `FACTOR` squared."""


def growth(make: Callable[[int], T], call: Callable[[T], object], size: int) -> float:
    """The processor time of `call(make(FACTOR * size))` over that of `call(make(size))`.

    Of this thread alone and the best of three, so that neither the load of the machine nor its
    speed matters; the first call, which warms up, is not counted.
    """
    spent = []
    for n in (size, FACTOR * size):
        made = make(n)
        call(make(1))
        spent.append(min(_spent_s(call, made) for _ in range(3)))
    return spent[1] / spent[0]


def _spent_s(call: Callable[[T], object], made: T) -> float:
    began = time.thread_time()
    call(made)
    return time.thread_time() - began
