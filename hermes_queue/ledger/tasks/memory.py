"""The memory of one deployment."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar

from hermes_queue.keyspace.connection import explained
from hermes_queue.keyspace.deployment import Deployment
from hermes_queue.ledger.tasks.observed import Observation, Observations, encoded, sums_by_task
from hermes_queue.ledger.tasks.task import Task, member_of
from hermes_queue.settings import TaskMemorySettings

T = TypeVar("T")

READ_AT_ONCE = 500
ADDED_AT_ONCE = 200
"""Rows of one call: Redis does nothing else for about 6 ms."""


class TaskMemory:
    """Reads and writes what is known of tasks. Blocks; thread-safe.

    Every method raises RedisUnavailable if Redis does not answer, and those that write RedisFull.
    """

    def __init__(self, ledger: Deployment, settings: TaskMemorySettings | None = None) -> None:
        """Of the deployment of `ledger`; `settings`: its bounds (default: this process's)."""
        self._ledger = ledger
        self._settings = settings or TaskMemorySettings()

    # --- reading --------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of remembered tasks."""
        return int(self._ask(lambda: self._ledger.client.zcard(self._index)))

    def get(self, env: str, item_sha256: str) -> Task | None:
        """One task; None if nothing is known of it."""
        return self.get_many(env, [item_sha256]).get(item_sha256)

    def get_many(self, env: str, item_sha256s: Iterable[str]) -> dict[str, Task]:
        """Tasks by the hash of their row, as far as something is known of them."""
        found: dict[str, Task] = {}
        for hashes in _chunks(item_sha256s, READ_AT_ONCE):
            for task in self._read([member_of(env, each) for each in hashes]):
                found[task.item_sha256] = task
        return found

    def newest(self) -> Iterator[Task]:
        """All tasks that have not been used since the call, newest first, a page at a time."""
        highest, seen_there = "+inf", 0
        while True:
            page = self._page(highest, seen_there)
            if not page:
                return
            yield from self._read([member for member, _ in page])
            last = page[-1][1]
            same = sum(score == last for _, score in page)
            seen_there = seen_there + same if highest == repr(last) else same
            highest = repr(last)

    def every(self) -> Iterator[Task]:
        """All tasks, in no order, a page at a time; one that is used meanwhile is not missed."""
        cursor, known = 0, frozenset[str]()
        while True:
            cursor, page = self._ask(
                lambda at=cursor: self._ledger.client.zscan(self._index, at, count=READ_AT_ONCE)
            )
            members = [member.decode("utf-8", "replace") for member, _ in page]
            for some in _chunks((each for each in members if each not in known), READ_AT_ONCE):
                yield from self._read(some)
            known = frozenset(members)
            if not cursor:
                return

    # --- writing --------------------------------------------------------------------------

    def add(self, seen: Iterable[Observation]) -> None:
        """Add what was seen; a repeated call adds it again."""
        for some in _chunks(sums_by_task(seen).items(), ADDED_AT_ONCE):
            self._add([(member, encoded(sums)) for member, sums in some])

    def report(self, waiting: Observations) -> int:
        """Add all that waits; the number of tasks. If that fails, the rest goes on waiting."""
        reported = 0
        while taken := waiting.take(ADDED_AT_ONCE):
            try:
                self._add([(member, encoded(sums)) for member, sums in taken.items()])
            except Exception:
                waiting.put_back(taken)
                raise
            reported += len(taken)
        return reported

    def take_over(self, tasks: Iterable[Task], *, add: bool = False) -> int:
        """Remember what another deployment knows; returns how many tasks have changed.

        A task replaces what is known here if that was seen less lately, so that the same file can
        be imported twice. With `add`, its counts are added instead.
        """
        taken = 0
        for some in _chunks(tasks, ADDED_AT_ONCE):
            rows = [(member_of(t.env, t.item_sha256), json.dumps(t.fields())) for t in some]
            taken += self._add(rows, mode="add" if add else "newer")
        return taken

    def forget(self, tasks: Iterable[tuple[str, str]]) -> int:
        """Forget tasks by env and hash; returns how many of them were known."""
        forgotten = 0
        for some in _chunks(tasks, READ_AT_ONCE):
            members = [member_of(env, item_sha256) for env, item_sha256 in some]
            forgotten += int(self._ledger.call("tasks_forget", members=members))
        return forgotten

    # --- Redis ----------------------------------------------------------------------------

    @property
    def _index(self) -> str:
        return self._ledger.key("tasks")

    def _ask(self, question: Callable[..., Any]) -> Any:
        with explained(self._ledger.url):
            return question()

    def _add(self, rows: list[tuple[str, str]], *, mode: str = "seen") -> int:
        return int(
            self._ledger.call(
                "tasks_add",
                ttl_s=self._settings.kept_s,
                most=self._settings.max_entries,
                mode=mode,
                rows=rows,
            )
        )

    def _page(self, highest: str, offset: int) -> list[tuple[str, float]]:
        found = self._ask(
            lambda: self._ledger.client.zrevrangebyscore(
                self._index, highest, "-inf", start=offset, num=READ_AT_ONCE, withscores=True
            )
        )
        return [(member.decode("utf-8", "replace"), score) for member, score in found]

    def _read(self, members: Sequence[str]) -> Iterator[Task]:
        if not members:
            return
        keys = [self._ledger.key(f"task:{member}") for member in members]
        # GET of another type is an error of that key alone; MGET answers nil for it.
        values = self._ask(lambda: self._ledger.client.mget(keys))
        for member, raw in zip(members, values, strict=True):
            env, _, item_sha256 = member.rpartition(":")
            if raw is not None and (task := Task.read(env, item_sha256, raw)):
                yield task


def _chunks(values: Iterable[T], size: int) -> Iterator[list[T]]:
    left = iter(values)
    while chunk := list(islice(left, size)):
        yield chunk
