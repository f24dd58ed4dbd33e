"""Which row of a source comes next: a function of the seed, the rows and the state alone.

An epoch's shuffled order sorts the rows by a hash of seed, source, epoch and the row's id. So the
state needs only the key of the last row, and rows that were added or removed between two starts
change nothing else: no row comes twice in an epoch, and none is left out.
"""

from __future__ import annotations

import hashlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from hermes_plugins.mix.document import ByPassRate, SourceTable
from hermes_plugins.mix.known import Measured
from hermes_plugins.mix.state import SourceState
from hermes_plugins.mix.store import StoredItems

RowStanding = Literal["band", "outside", "unknown", "solved", "impossible", "poison"]
"""What a pass rate says about a row: always or never solved, workers died under it, ..."""
PAGE = 64
"""Rows about which the memory of tasks is asked at once."""
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Next:
    """The row of a source that comes next."""

    index: int
    step: str
    """Tells the groups of this row apart."""


class RowSampler(Protocol):
    """Moves on in a source's state."""

    def next(self) -> Next | None:
        """The next row; None = there is none now, see `over`."""
        ...

    @property
    def over(self) -> bool:
        """Whether all epochs are done."""
        ...


def make_sampler(
    seed: int,
    name: str,
    table: SourceTable,
    items: StoredItems,
    state: SourceState,
    rates: Callable[[Sequence[int]], Sequence[Measured | None]],
) -> RowSampler:
    """The sampler of a source, which goes on from `state`; `rates` knows rows by their places."""
    kind = table.sampler.kind
    if state.kind and state.kind != kind:  # other rows are left in this epoch
        state.epoch, state.after, state.at, state.page = state.epoch + 1, -1, 0, []
    state.kind = kind
    salt = f"{seed}/{name}"
    if kind == "uniform":
        return Uniform(salt, items, state)
    if kind == "in_order":
        return InFileOrder(items, state, table.epochs)
    shuffled = Shuffled(salt, items, state, table.epochs)
    if isinstance(table.sampler, ByPassRate):
        return PassRateSampler(shuffled, table.sampler, rates)
    return shuffled


def _salted(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def mixed(value: int) -> int:
    """64 bits that look random; different for different values (splitmix64)."""
    value = (value + 0x9E3779B97F4A7C15) & _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


class Uniform:
    """Any row at any time."""

    over = False

    def __init__(self, salt: str, items: StoredItems, state: SourceState) -> None:
        self._salt, self._items, self._state = _salted(f"{salt}/any"), items, state

    def next(self) -> Next | None:
        """See `RowSampler`."""
        number = self._state.at
        self._state.at += 1
        return Next(mixed(self._salt ^ mixed(number)) % len(self._items), f"u{number}")


class InFileOrder:
    """The rows as they are in their dataset, again and again."""

    def __init__(self, items: StoredItems, state: SourceState, epochs: int | None) -> None:
        self._items, self._state, self._epochs = items, state, epochs
        at, digests = state.at, items.digests
        if at and (at > len(digests) or digests[at - 1] != state.last):
            # Rows before this place were added or removed.
            known = state.last in digests if state.last >= 0 else False
            state.at = digests.index(state.last) + 1 if known else min(at, len(digests))

    @property
    def over(self) -> bool:
        """See `RowSampler`."""
        return self._epochs is not None and self._state.epoch > self._epochs

    def next(self) -> Next | None:
        """See `RowSampler`."""
        state = self._state
        if state.at >= len(self._items) and not self.over:
            state.epoch, state.at = state.epoch + 1, 0
        if self.over:
            return None
        index = state.at
        state.at, state.last = index + 1, self._items.digests[index]
        return Next(index, f"e{state.epoch}")


class Shuffled:
    """All rows in an order of their own in every epoch."""

    def __init__(
        self, salt: str, items: StoredItems, state: SourceState, epochs: int | None
    ) -> None:
        self._text, self.items, self.state, self._epochs = salt, items, state, epochs
        self._epoch, self._at, self._chances = 0, 0, 0
        self._keys, self._order = array("Q"), array("Q")

    @property
    def over(self) -> bool:
        """See `RowSampler`."""
        return self._epochs is not None and self.state.epoch > self._epochs

    def next(self) -> Next | None:
        """See `RowSampler`."""
        found = self.ahead(1)
        if not found:
            return None
        self.move(found[-1])
        return Next(found[0], f"e{self.state.epoch}")

    def ahead(self, most: int) -> Sequence[int]:
        """Places of the next rows of this epoch; of the next one if none is left; none if over."""
        self._load()
        if self._at >= len(self._order) and not self.over:
            self.state.epoch, self.state.after = self.state.epoch + 1, -1
            self._load()
        return () if self.over else self._order[self._at : self._at + most]

    def move(self, index: int) -> None:
        """Go on after a row of `ahead`."""
        self.state.after = self._keys[index]
        while self._at < len(self._order) and self._order[self._at] != index:
            self._at += 1
        self._at += 1

    def chance(self, index: int) -> float:
        """A number from 0 to 1 that looks random and is the same for the same row and epoch."""
        return mixed(self.items.digests[index] ^ self._chances) / 2**64

    def back(self, epoch: int, after: int) -> None:
        """Go back to where it was."""
        self.state.epoch, self.state.after = epoch, after
        self._epoch = 0

    def _load(self) -> None:
        """The order of the state's epoch, and the place in it."""
        state = self.state
        if self._epoch == state.epoch or self.over:
            return
        salt = _salted(f"{self._text}/{state.epoch}")
        self._chances = _salted(f"{self._text}/{state.epoch}/chance")
        self._keys = array("Q", (mixed(each ^ salt) for each in self.items.digests))
        self._order = array("Q", sorted(range(len(self._keys)), key=self._keys.__getitem__))
        self._epoch = state.epoch
        self._at = bisect_right(self._order, state.after, key=self._keys.__getitem__)


class PassRateSampler:
    """Rows in shuffled epochs, without most of those that teach nothing."""

    def __init__(
        self,
        shuffled: Shuffled,
        table: ByPassRate,
        rates: Callable[[Sequence[int]], Sequence[Measured | None]],
    ) -> None:
        self._shuffled, self._table, self._rates = shuffled, table, rates
        self._places: dict[int, int] = {}
        self._counted = shuffled.state.epoch

    @property
    def over(self) -> bool:
        """See `RowSampler`."""
        return self._shuffled.over and not self._shuffled.state.page

    def next(self) -> Next | None:
        """See `RowSampler`."""
        state = self._shuffled.state
        while True:
            if not state.page and not self._turn():
                return None
            digest = state.page.pop(0)
            index = self._place(digest)
            if index is not None:  # else the row was removed since
                return Next(index, f"e{state.epoch}")  # a page lies within one epoch

    def _turn(self) -> bool:
        """Choose the next page; False = no row is worth it now, or all epochs are over."""
        shuffled, state = self._shuffled, self._shuffled.state
        epoch, after, looked = state.epoch, state.after, 0
        while looked < len(shuffled.items) + PAGE:
            window = shuffled.ahead(PAGE)
            if not window:
                return False
            if state.epoch != self._counted:
                state.looked, self._counted = {}, state.epoch
            chosen = []
            for place, rate in zip(window, self._rates(window), strict=True):
                standing = self._standing(rate)
                state.looked[standing] = state.looked.get(standing, 0) + 1
                if self._takes(place, standing):
                    chosen.append(place)
            looked += len(window)
            shuffled.move(window[-1])
            if chosen:
                digests = shuffled.items.digests
                state.page = [digests[place] for place in chosen]
                self._places = {digests[place]: place for place in chosen}
                return True
        shuffled.back(epoch, after)  # looking is no epoch
        return False

    def _takes(self, place: int, standing: RowStanding) -> bool:
        table, chance = self._table, self._shuffled.chance(place)
        match standing:
            case "unknown":
                return chance < table.explore
            case "solved" | "impossible":
                return chance < table.revisit
            case "outside":
                return chance < table.outside
            case "poison":
                return False
        return True

    def _standing(self, rate: Measured | None) -> RowStanding:
        if rate is not None and rate.is_poison:
            return "poison"
        if rate is None or rate.scored < self._table.min_attempts:
            return "unknown"
        if rate.passes in (0, rate.scored):
            return "solved" if rate.passes else "impossible"
        low, high = self._table.band
        return "band" if low <= rate.passes / rate.scored <= high else "outside"

    def _place(self, digest: int) -> int | None:
        if digest not in self._places:
            try:
                self._places[digest] = self._shuffled.items.digests.index(digest)
            except ValueError:
                return None
        return self._places[digest]
