"""What of ours an Atropos server holds, and what its trainer has taken.

That server forgets everything when it ends, and answers "received" long before a trainer has
the group. What it tells is how many of our groups still wait (`/status-env`), and the group it
received last (`/latest_example`). Its queue is first in, first out among groups of one size and
environment; so which of ours were taken follows from how many wait.

The invariant: what was sent and is not acknowledged in Redis is one batch at most. Hence
whatever dies, at most one batch is sent again.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hermes_queue.sinks.atropos.client import EnvStatus
from hermes_queue.sinks.atropos.wire import Post


@dataclass(slots=True)
class Entry:
    """One post, from when it is ready until the trainer surely has it."""

    key: str
    post: Post | None = None
    """None: an earlier process sent it, and Redis has not delivered its group again yet."""
    taken_s: float = 0.0
    """When it was seen to be taken, on the monotonic clock."""


@dataclass(slots=True)
class Journal:
    """Posts by what became of them. Pure state; the clock is an argument."""

    ready: deque[Entry] = field(default_factory=deque)
    """To be sent, in this order; first what a server lost."""
    queued: deque[Entry] = field(default_factory=deque)
    """The server has it, no batch does. Oldest first."""
    taken: deque[Entry] = field(default_factory=deque)
    """A batch has it. Whether the trainer has that batch is not known yet."""
    step: int = 0
    """The server's, as last seen."""

    def room(self, groups_per_batch: int) -> int:
        """How many may be sent now without breaking the invariant."""
        return groups_per_batch - len(self.queued) - len(self.taken)

    def sent(self, entry: Entry) -> None:
        """The server took it."""
        self.queued.append(entry)

    def observe(self, status: EnvStatus, now_s: float) -> bool:
        """Note what was taken since; False if this cannot be the server we sent to.

        A step that went back, or groups that are gone although no batch was formed, mean that
        it was reset, and that another environment may have our id by now.
        """
        gone = len(self.queued) - status.own_queue_size
        if status.step < self.step or (gone > 0 and status.step == self.step):
            return False
        self.step = status.step
        for _ in range(gone):
            entry = self.queued.popleft()
            entry.taken_s = now_s
            self.taken.append(entry)
        return True

    def settle(self, now_s: float, settle_s: float) -> list[Entry]:
        """Remove and return what the trainer has by now.

        That is what was taken `settle_s` ago, on a server that lives still: it forms a batch
        before it answers with it, and can die between.
        """
        done = []
        while self.taken and now_s - self.taken[0].taken_s >= settle_s:
            done.append(self.taken.popleft())
        return done

    def lost(self) -> int:
        """The server forgot everything: make it ready again, in the old order.

        What only an earlier process knew is left out; its groups are delivered again.

        Returns:
            How many will be sent again.
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
        """The entry that the server has or had, if it is not settled."""
        return next((e for e in (*self.taken, *self.queued) if e.key == key), None)

    def note(self, sink: str, env_id: int, coming: Entry) -> dict[str, Any]:
        """What travels with the post of `coming`: enough for a successor of this process.

        It lives as long as what it describes: in the memory of that server.
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
        """Take over what `note`, the last one the server received, says was sent.

        Entries known already keep their posts.

        Returns:
            False if the note cannot be of this life of the server; nothing is changed then.
        """
        keys: list[str] = note["posts"]
        gone = len(keys) - status.own_queue_size
        if status.step < max(note["step"], self.step) or gone < note["taken"]:
            return False
        if gone > note["taken"] and status.step == note["step"]:
            return False
        known = {entry.key: entry for entry in (*self.taken, *self.queued, *self.ready)}
        entries = [known.get(key) or Entry(key) for key in keys]
        self.ready = deque(entry for entry in self.ready if entry.key not in keys)
        self.taken = deque(entries[:gone])
        self.queued = deque(entries[gone:])
        for entry in self.taken:
            entry.taken_s = entry.taken_s or now_s
        self.step = status.step
        return True
