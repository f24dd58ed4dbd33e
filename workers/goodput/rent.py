"""The price of a slot while it is held."""

from __future__ import annotations

import time
from functools import cache

from hermes_queue.sandbox.base import Slot
from hermes_queue.settings import PriceSettings


class Rent:
    """Counts what the slot of one attempt costs, from its lease to its release."""

    __slots__ = ("_due_usd", "_since", "_usd_per_s")

    def __init__(self) -> None:
        self._due_usd = 0.0
        self._usd_per_s = 0.0
        self._since: float | None = None

    def begin(self, slot: Slot) -> None:
        """Note that the slot is held from now on."""
        price = slot.usd_per_s
        self._usd_per_s = _default_usd_per_s() if price is None else price
        self._since = time.monotonic()

    def end(self) -> None:
        """Note that the slot was released; what it has cost so far remains due."""
        self._due_usd, self._since = self.usd, None

    @property
    def usd(self) -> float:
        """Price of the slot so far, in US dollars."""
        if self._since is None or not self._usd_per_s:
            return self._due_usd
        return self._due_usd + (time.monotonic() - self._since) * self._usd_per_s


@cache
def _default_usd_per_s() -> float:
    return PriceSettings().slot_hour_usd / 3600
