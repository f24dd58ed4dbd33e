"""argparse types for numbers in a range."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def at_least(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """An argparse type: whole numbers in a range."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < minimum or (maximum is not None and value > maximum):
            bound = f"at least {minimum}" if maximum is None else f"{minimum} to {maximum}"
            raise argparse.ArgumentTypeError(f"must be {bound}, not {value}")
        return value

    return parse


def number(minimum: float, *, above: bool = False) -> Callable[[str], float]:
    """An argparse type: finite numbers of at least `minimum`, or above it."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
        if not math.isfinite(value) or value < minimum or (above and value == minimum):
            bound = "more than" if above else "at least"
            raise argparse.ArgumentTypeError(f"must be {bound} {minimum:g}, not {text}")
        return value

    return parse
