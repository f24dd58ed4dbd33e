"""Which table of `top` the keys move, and how far it is scrolled."""

from __future__ import annotations

from dataclasses import dataclass, field

TABLES = ("runs", "lanes", "workers", "trajectories")
TRAJECTORIES = TABLES.index("trajectories")


@dataclass(slots=True)
class Scrolling:
    """The state of the keys. A frame tells it what fits, and is drawn by it."""

    table: int | None = None
    """Index of the table that the keys move; None = none, and all share the height."""
    first: list[int] = field(default_factory=lambda: [0] * len(TABLES))
    """Index of the first row that is shown of each."""
    _rows: list[int] = field(default_factory=lambda: [0] * len(TABLES))
    _shown: list[int] = field(default_factory=lambda: [1] * len(TABLES))

    def fits(self, table: int, rows: int, shown: int) -> int:
        """Note that `shown` of a table's rows fit; returns the first one to show."""
        self._rows[table], self._shown[table] = rows, max(1, shown)
        self.first[table] = max(0, min(self.first[table], rows - self._shown[table]))
        return self.first[table]

    def press(self, key: str) -> None:
        """Do what a key says; others than those below change nothing."""
        if key in ("next", "back"):
            self._choose(1 if key == "next" else -1)
            return
        if key not in ("up", "down", "page up", "page down", "home", "end"):
            return
        if self.table is None:
            self.table = len(TABLES) - 1
        at, page = self.table, max(1, self._shown[self.table] - 1)
        moves = {"up": -1, "down": 1, "page up": -page, "page down": page}
        moves |= {"home": -self._rows[at], "end": self._rows[at]}
        last = max(0, self._rows[at] - self._shown[at])
        self.first[at] = max(0, min(last, self.first[at] + moves.get(key, 0)))

    def _choose(self, step: int) -> None:
        """The next table, or after the last one none."""
        places = len(TABLES) + 1
        at = len(TABLES) if self.table is None else self.table
        at = (at + step) % places
        self.table = None if at == len(TABLES) else at
