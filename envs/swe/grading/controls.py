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
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from envs.swe.grading.places import TestFunction
from envs.swe.item import Item
from hermes_queue.settings import PathSettings, private_directory

RULES = "2"
"""Rises when a control that passed under the old rules says nothing about the new ones."""
DOUBT_TTL_S = 24 * 3600.0
"""What speaks against a row or its tests is believed for a day: a busy machine may have said it."""
MAX_PASSES = 64
"""So many runs of the known fix are remembered."""


@dataclass(frozen=True, slots=True)
class RowRecord:
    """What is known; the default is nothing."""

    passes: tuple[tuple[str, frozenset[TestFunction]], ...] = ()
    """Runs in which the known fix does well: the tests, "few" or "all" of them, and which functions
    were planted."""
    fault: str = ""
    """Why the row cannot be graded, in words for its owner."""
    unplantable: tuple[tuple[str, str], ...] = ()
    """File and name of test functions that do not fail where they are planted."""
    plantless: bool = False
    """Whether other tests suffer when some of them fail, so that none may be planted."""
    whole_files: bool = False
    """Whether tests depend on others of their file, so that they are not run by themselves."""
    doubted_at: float = 0.0
    """Unix time at which anything was learnt that speaks against the row, its tests or what was
    seen of them; 0 = nothing was."""
    lines: tuple[tuple[str, str, int], ...] | None = None
    """File, name and line of the statement that fails as long as the bug is there; None = not
    looked for yet."""

    def believed(self, now: float) -> RowRecord:
        """The record, or nothing: doubts that are too old, and what was learnt under them.

        What the known fix passes without plants, say, is no word on plants. `now` is Unix time.
        """
        if not self.doubted_at or now - self.doubted_at < DOUBT_TTL_S:
            return self
        return RowRecord()

    def fix_passes(
        self, kind: str, planted: Collection[TestFunction], failing: Iterable[TestFunction]
    ) -> bool:
        """Whether the known fix passes the tests `failing` where those of `planted` fail.

        For each two of them it was seen that the one passes while the other fails.
        """
        seen = [functions for known, functions in self.passes if known == kind]
        for test in set(failing):
            while_failing = [functions for functions in seen if test not in functions]
            if not while_failing or not frozenset(planted) <= frozenset().union(*while_failing):
                return False
        return True

    def passing(self, kind: str, planted: Collection[TestFunction]) -> RowRecord:
        """The same, with one more run in which the known fix does well."""
        run = (kind, frozenset(planted))
        older = [known for known in self.passes if known != run]
        return replace(self, passes=(*older, run)[-MAX_PASSES:])

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
        draft.write_text(json.dumps({**asdict(replace(record, passes=())), "passes": passes}))
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
