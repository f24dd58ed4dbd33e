"""The list of stored objects: noted before they exist, listed until they are deleted.

A publication whose object is not on the list is refused (`unstored`). Otherwise the cleanup
could delete an object, found unneeded a moment before, that is just being published.

All functions raise `RedisUnavailable` or `RedisFull` when Redis cannot answer, and may be repeated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

_BATCH = 200
_AGAIN_S = 3600.0
"""If an object's deletion is not reported for this long, its deleter is presumed dead. Longer than
any library retries, so that its request cannot arrive later."""


@dataclass(frozen=True, slots=True)
class NotedObject:
    """One object, and the trajectory it was stored for."""

    trajectory_id: str
    url: str

    @property
    def listed(self) -> str:
        """Its entry in the list."""
        return f"{self.trajectory_id} {self.url}"


def note_object(ledger: Ledger, noted: NotedObject, *, grace_s: float) -> bool:
    """List an object before it is stored; it is kept for `grace_s` although no body refers to it.

    Returns False if that object is being deleted just now: store it under another URL.
    """
    return bool(ledger.call("object_note", object=noted.listed, grace_s=grace_s))


def unneeded_objects(ledger: Ledger, base: str, *, grace_s: float) -> list[NotedObject]:
    """Objects below the URL `base` that no body refers to; the caller has to delete them.

    An object is checked every `grace_s`. Objects of other stores are left alone.
    """
    folder = base.rstrip("/") + "/"
    found = ledger.call("object_sweep", base=folder, grace_s=grace_s, again_s=_AGAIN_S, most=_BATCH)
    return [NotedObject(*member.decode().split(" ", 1)) for member in found]


def objects_gone(ledger: Ledger, objects: Sequence[NotedObject]) -> None:
    """Take deleted objects off the list; else they are returned for deletion again."""
    if objects:
        with explained(ledger.url):
            ledger.client.zrem(ledger.key("objects:doomed"), *[noted.listed for noted in objects])
