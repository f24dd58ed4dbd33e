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
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envs.swe.grading.places import TestFunction
from envs.swe.item import Item
from hermes_queue.settings import PathSettings, private_directory

RULES = "2"
"""Rises when a control that passed under the old rules says nothing about the new ones."""
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
    unplantable: tuple[tuple[str, str], ...] = ()
    """File and name of test functions that do not fail when planted."""
    plantless: bool = False
    """Whether planted failures make other tests fail, so that none may be planted."""
    whole_files: bool = False
    """Whether tests depend on others in their file, so that they cannot run alone."""
    doubted_at: float = 0.0
    """Unix time of the first finding against the row or its tests; 0 = none."""
    lines: tuple[tuple[str, str, int], ...] | None = None
    """File, name and line of the statement that fails because of the bug; None = not determined
    yet."""

    def believed(self, now: float) -> RowRecord:
        """This record, or an empty one if its doubts have expired at Unix time `now`.

        Everything learnt under a doubt expires with it: that the known fix passes without
        plants, say, proves nothing about plants.
        """
        if not self.doubted_at or now - self.doubted_at < DOUBT_TTL_S:
            return self
        return RowRecord()

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

    def without(self, functions: frozenset[TestFunction]) -> RowRecord:
        """This record with these functions marked as unplantable."""
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
        """The stored record; empty if the file cannot be read."""
        return (await asyncio.to_thread(_read, self._path)).believed(time.time())

    async def write(self, record: RowRecord) -> None:
        """Store the record. A full disk loses the record, not the trajectory."""
        await asyncio.to_thread(_write, self._path, record)


def _read(path: Path) -> RowRecord:
    try:
        stored = json.loads(path.read_bytes())
        return RowRecord(
            passes=tuple(
                (str(kind), frozenset(TestFunction(str(f), str(name)) for f, name in planted))
                for kind, planted in stored["passes"]
            ),
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
        passes = [(kind, sorted((t.file, t.name) for t in p)) for kind, p in record.passes]
        # A draft with a name of this process: two workers that wrote the same file would mix their
        # records, and a reader could see half of one.
        draft.write_text(json.dumps({**asdict(replace(record, passes=())), "passes": passes}))
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
