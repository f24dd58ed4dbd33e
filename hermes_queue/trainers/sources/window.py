"""The order in which a trainer gets groups, and how old they may be by then. No I/O.

Groups come in the order in which they finish, so that easy ones are first and hard, slow ones
always last. A window holds some of them back and hands out the oldest one: by the policy version
that sampled it, which is the next to be too old, then by when its item was enqueued.
"""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from hermes_queue.models import TrajectoryGroup
from hermes_queue.policy import oldest_number

T = TypeVar("T")

_AWAIT_S = 10.0
"""An expected item may be gone for good, for instance because its record is damaged."""


@dataclass(frozen=True, slots=True)
class Age:
    """What decides the turn of a group."""

    version: int | None
    """Oldest policy version that is known to have sampled a member; None if none is known."""
    certain: bool
    """Whether the version of every member is known."""
    enqueued_s: float
    """When the group was enqueued: Unix seconds, by Redis' clock."""

    @classmethod
    def of(cls, group: TrajectoryGroup, *, begun: bool = False) -> Age:
        """The age of a group whose records are at hand.

        With `begun`, by the run's version when each attempt began, whatever served it.
        """
        versions = [
            member.policy_begun if begun else oldest_number(member) for member in group.members
        ]
        known = [version for version in versions if version is not None]
        return cls(min(known, default=None), None not in versions, group.created)

    def lag(self, version: int | None) -> int | None:
        """Versions by which the group is behind `version`, at least; None if unknown."""
        if self.version is None or version is None:
            return None
        return max(0, version - self.version)


@dataclass(order=True, frozen=True, slots=True)
class Waiting(Generic[T]):
    """An item and its turn."""

    turn: tuple[int, float, int]
    item: T = field(compare=False)
    age: Age = field(compare=False)


class Window(Generic[T]):
    """Items that wait for their turn. With a size of 0 it keeps the order of `add`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._numbers = itertools.count()
        self._heap: list[Waiting[T]] = []
        self._order: dict[str, int] = {}
        self._awaited: set[str] = set()
        self._awaited_until_s = 0.0

    def __len__(self) -> int:
        return len(self._heap)

    def expect(self, names: Sequence[str]) -> None:
        """Put items of these names before all others, in this order, as soon as they come."""
        self._order = {name: index for index, name in enumerate(names)}
        self._awaited = set(names)
        self._awaited_until_s = time.monotonic() + _AWAIT_S

    def awaits(self) -> bool:
        """Whether an expected item has not come; after ten seconds it is not expected any more."""
        return bool(self._awaited) and time.monotonic() < self._awaited_until_s

    def came(self, name: str) -> None:
        """Record that the item of this name has come, whether it is added or not."""
        self._awaited.discard(name)

    def add(self, item: T, age: Age, name: str = "") -> None:
        """Add an item, which came after those before it."""
        # Of an unknown version first: it may be older than any other, and cannot wait for ever.
        version = -1 if age.version is None else age.version
        first = (version, age.enqueued_s) if self.size else (0, 0.0)
        if (place := self._order.pop(name, None)) is not None:
            first = (-2, float(place))
        self.put_back(Waiting((*first, next(self._numbers)), item, age))

    def put_back(self, waiting: Waiting[T]) -> None:
        """Add an item that was taken, at its old place."""
        heapq.heappush(self._heap, waiting)

    def take(self) -> Waiting[T]:
        """Remove and return the item whose turn it is.

        Raises:
            IndexError: there is none.
        """
        return heapq.heappop(self._heap)
