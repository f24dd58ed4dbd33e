"""What a host has learnt about a row by running its tests with the known fix.

A failing attempt says something about the agent only if the right answer passes here. So the first
attempt on a row that fails is answered by such a run, and the result is kept in the cache: one file
per row, set of dependencies and version of these rules.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envs.swe.grading.places import TestFunction
from envs.swe.item import Item
from hermes_queue.settings import PathSettings, private_directory

RULES = "1"
"""Rises when a control that passed under the old rules says nothing about the new ones."""
DOUBT_TTL_S = 24 * 3600.0
"""What speaks against a row or its tests is believed for a day: a busy machine may have said it."""


@dataclass(frozen=True, slots=True)
class RowRecord:
    """What is known; the default is nothing."""

    passes: tuple[str, ...] = ()
    """Stages of grading ("first", "all") whose tests the known fix passes."""
    fault: str = ""
    """Why the row cannot be graded, in words for its owner."""
    unplantable: tuple[tuple[str, str], ...] = ()
    """File and name of test functions that do not fail where they are planted."""
    plantless: bool = False
    """Whether other tests suffer when some of them fail, so that none may be planted."""
    whole_files: bool = False
    """Whether tests depend on others of their file, so that they are not run by themselves."""
    doubted_at: float = 0.0
    """Unix time at which all this was learnt, but for `passes` and `lines`."""
    lines: tuple[tuple[str, str, int], ...] | None = None
    """File, name and line of the statement that fails as long as the bug is there; None = not
    looked for yet."""

    def believed(self, now: float) -> RowRecord:
        """The record without what was learnt too long ago. `now` is Unix time."""
        if now - self.doubted_at < DOUBT_TTL_S:
            return self
        return RowRecord(passes=self.passes, lines=self.lines)

    def without(self, functions: frozenset[TestFunction]) -> RowRecord:
        """The same, with these functions marked as unplantable."""
        found = {(test.file, test.name) for test in functions}
        return replace(self, unplantable=tuple(sorted({*self.unplantable, *found})))


class RowMemory:
    """The record of one row on this host. Safe for several workers: the last writer wins."""

    def __init__(self, item: Item) -> None:
        row = json.dumps(item.model_dump(mode="json"), sort_keys=True)
        text = "\0".join([RULES, row])
        digest = hashlib.sha256(text.encode()).hexdigest()
        self._path = PathSettings().cache / "rows" / digest[:2] / f"{digest}.json"

    async def read(self) -> RowRecord:
        """What is known. A file that cannot be read says nothing."""
        return (await asyncio.to_thread(_read, self._path)).believed(time.time())

    async def write(self, record: RowRecord) -> None:
        """Keep it. A full disk costs the memory, not the trajectory."""
        await asyncio.to_thread(_write, self._path, record)


def _read(path: Path) -> RowRecord:
    try:
        stored = json.loads(path.read_bytes())
        return RowRecord(
            passes=tuple(map(str, stored["passes"])),
            fault=str(stored["fault"]),
            unplantable=tuple((str(file), str(name)) for file, name in stored["unplantable"]),
            plantless=bool(stored["plantless"]),
            whole_files=bool(stored["whole_files"]),
            doubted_at=float(stored["doubted_at"]),
            lines=None
            if stored["lines"] is None
            else tuple((str(file), str(name), int(line)) for file, name, line in stored["lines"]),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return RowRecord()


def _write(path: Path, record: RowRecord) -> None:
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        private_directory(path.parent)
        draft.write_text(json.dumps(asdict(record)))
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
