"""Numbers on the command line."""

from __future__ import annotations

import math
from typing import Any

import click


class FiniteRange(click.FloatRange):
    """A number between bounds. Click's own takes `nan`, which is neither below nor above any."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """The number; ends the command for one that is out of bounds or not finite."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is no finite number", param, ctx)
        return number
