"""Tracks which of our posts an Atropos server holds, and which its trainer has taken.

The server forgets everything when it ends, and answers "received" long before a trainer has the
group. It reports how many of our groups still wait (`/status-env`), and the group that it
received last (`/latest_example`). Its queue is first in, first out among groups of one size and
environment, so the number that waits shows which of ours were taken.

Invariant: at most one batch is sent and not yet acknowledged in Redis. So at most one batch is
sent again, whichever process dies.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.sinks.atropos.client import EnvStatus
from hermes_queue.sinks.atropos.wire import Post


@dataclass(slots=True)
class Entry:
    """One post, from when it is ready until the trainer certainly has it."""

    key: str
    post: Post | None = None
    """None if an earlier process sent it and Redis has not yet delivered its group again."""
    taken_s: float = 0.0
    """When we noticed that it was taken, on the monotonic clock."""


@dataclass(slots=True)
class Journal:
    """Posts by state. No I/O; the clock is an argument."""

    ready: deque[Entry] = field(default_factory=deque)
    """Posts to send, in this order; those that a server lost come first."""
    queued: deque[Entry] = field(default_factory=deque)
    """Posts that the server has and no batch does, oldest first."""
    taken: deque[Entry] = field(default_factory=deque)
    """Posts in a batch of which it is not yet certain that the trainer has it."""
    step: int = 0
    """The server's step when last seen."""

    def room(self, groups_per_batch: int) -> int:
        """Number of posts that may be sent now without violating the invariant."""
        return groups_per_batch - len(self.queued) - len(self.taken)

    def sent(self, entry: Entry) -> None:
        """Record that the server accepted a post."""
        self.queued.append(entry)

    def observe(self, status: EnvStatus, now_s: float) -> bool:
        """Record which posts were taken since; False if the server lost its state.

        A step that decreased, or posts that disappeared although no batch was formed, mean that
        the server was reset, and that another environment may now have our id.
        """
        taken = len(self.queued) - status.own_queue_size
        if status.step < self.step or (taken > 0 and status.step == self.step):
            return False
        self.step = status.step
        for _ in range(taken):
            entry = self.queued.popleft()
            entry.taken_s = now_s
            self.taken.append(entry)
        return True

    def settle(self, now_s: float, settle_s: float) -> list[Entry]:
        """Remove and return the posts that the trainer certainly has.

        These are the posts taken at least `settle_s` ago, on a server that still lives: it forms
        a batch before it answers with it, and can die in between.
        """
        done = []
        while self.taken and now_s - self.taken[0].taken_s >= settle_s:
            done.append(self.taken.popleft())
        return done

    def lost(self) -> int:
        """Queue all posts again, in their old order, after the server lost its state.

        Posts known only to an earlier process are left out; Redis delivers their groups again.

        Returns:
            The number of posts to send again.
        """
        again = [entry for entry in (*self.taken, *self.queued) if entry.post is not None]
        for entry in again:
            entry.taken_s = 0.0
        self.taken.clear()
        self.queued.clear()
        self.step = 0
        self.ready.extendleft(reversed(again))
        return len(again)

    def find(self, key: str) -> Entry | None:
        """The unsettled entry that the server has or had; None if there is none."""
        return next((e for e in (*self.taken, *self.queued) if e.key == key), None)

    def note(self, sink: str, env_id: int, coming: Entry) -> dict[str, Any]:
        """The state sent along with the post of `coming`, for a successor of this process.

        It lives as long as the posts that it describes, in the memory of the server.
        """
        keys = [entry.key for entry in (*self.taken, *self.queued, coming)]
        return {
            "sink": sink,
            "env_id": env_id,
            "step": self.step,
            "taken": len(self.taken),
            "posts": keys,
        }

    def adopt(self, note: dict[str, Any], status: EnvStatus, now_s: float) -> bool:
        """Take over the posts in `note`, which the server received last.

        Entries already known keep their posts.

        Returns:
            False if the server lost its state after the note was sent; then nothing is changed.
        """
        keys: list[str] = note["posts"]
        taken = len(keys) - status.own_queue_size
        if status.step < max(note["step"], self.step) or taken < note["taken"]:
            return False
        if taken > note["taken"] and status.step == note["step"]:
            return False
        known = {entry.key: entry for entry in (*self.taken, *self.queued, *self.ready)}
        entries = [known.get(key) or Entry(key) for key in keys]
        self.ready = deque(entry for entry in self.ready if entry.key not in keys)
        self.taken = deque(entries[:taken])
        self.queued = deque(entries[taken:])
        for entry in self.taken:
            entry.taken_s = entry.taken_s or now_s
        self.step = status.step
        return True
