"""A host's findings about a row from running its tests with the known fix.

A failing attempt is the agent's fault only if the right answer passes on this host. So the first
failing attempt on a row triggers such a run, whose result is cached: one file per row, set of
dependencies and version of these rules.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from envs.swe.grading.places import TestFunction
from envs.swe.item import Item
from hermes_queue.settings import PathSettings, private_directory

RULES = "4"
"""Rises when a control that passed under the old rules says nothing about the new ones, and when
a worker of another version would misread the record."""
DOUBT_TTL_S = 24 * 3600.0
"""Lifetime of findings against a row or its tests, which a busy machine may have caused."""
MAX_PASSES = 64
"""Number of runs of the known fix that are remembered."""


@dataclass(frozen=True, slots=True)
class RowRecord:
    """The findings about a row; empty by default."""

    passes: tuple[tuple[str, frozenset[TestFunction]], ...] = ()
    """Runs that the known fix passed: the kind of tests, "few" or "all", and the planted
    functions."""
    fault: str = ""
    """Reason why the row cannot be graded, for its owner."""
    unplantable: frozenset[TestFunction] = frozenset()
    """Test functions that do not fail when planted."""
    plantless: bool = False
    """Whether planted failures make other tests fail, so that none may be planted."""
    whole_files: bool = False
    """Whether tests depend on others in their file, so that they cannot run alone."""
    doubted_at: float = 0.0
    """Unix time of the first finding against the row or its tests; 0 = none."""
    marked: frozenset[str] = frozenset()
    """Tests that the known fix leaves failing as expected (`xfail`), by id."""
    flaky: frozenset[str] = frozenset()
    """Tests that passed and failed with the same files, by id."""
    steady: frozenset[str] = frozenset()
    """Tests that passed each time when the known fix was run again because of them, by id."""
    lines: tuple[tuple[TestFunction, int], ...] | None = None
    """Functions and the line of the statement that fails because of the bug; None = not determined
    yet."""

    def believed(self, now: float) -> RowRecord:
        """This record, or an empty one if its doubts have expired at Unix time `now`.

        Everything learnt under a doubt expires with it: that the known fix passes without
        plants, say, proves nothing about plants.
        """
        expired = self.doubted_at and now - self.doubted_at >= DOUBT_TTL_S
        return RowRecord() if expired else self

    def fix_passes(
        self, kind: str, planted: Collection[TestFunction], failing: Iterable[TestFunction]
    ) -> bool:
        """Whether the known fix passes the tests `failing` while those of `planted` fail.

        True if, for every pair of them, a run has shown that one passes while the other fails.
        """
        seen = [functions for known, functions in self.passes if known == kind]
        for test in set(failing):
            while_failing = [functions for functions in seen if test not in functions]
            if not while_failing or not frozenset(planted) <= frozenset().union(*while_failing):
                return False
        return True

    def passing(self, kind: str, planted: Collection[TestFunction]) -> RowRecord:
        """This record with one more run that the known fix passed."""
        run = (kind, frozenset(planted))
        older = [known for known in self.passes if known != run]
        return replace(self, passes=(*older, run)[-MAX_PASSES:])


_RECORD = TypeAdapter(RowRecord)


class RowMemory:
    """The record of one row on this host. Safe for several workers: the last writer wins."""

    def __init__(self, item: Item, image: str | None = None) -> None:
        """`image`: what a slot says of its image, if the row has one."""
        row = json.dumps(item.model_dump(mode="json"), sort_keys=True) + (image or "")
        digest = hashlib.sha256(f"{RULES}\0{row}".encode()).hexdigest()
        self._path = PathSettings().cache / "rows" / digest[:2] / f"{digest}.json"

    async def read(self) -> RowRecord:
        """The stored record; empty if the file cannot be read."""
        return (await asyncio.to_thread(_read, self._path)).believed(time.time())

    async def write(self, record: RowRecord) -> None:
        """Store the record. A full disk loses the record, not the trajectory."""
        await asyncio.to_thread(_write, self._path, record)


def _read(path: Path) -> RowRecord:
    try:
        return _RECORD.validate_json(path.read_bytes())
    except (OSError, ValueError):
        return RowRecord()


def _write(path: Path, record: RowRecord) -> None:
    draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        private_directory(path.parent)
        # A draft with a name of this process: two workers that wrote the same file would mix their
        # records, and a reader could see half of one.
        draft.write_bytes(_RECORD.dump_json(record))
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
