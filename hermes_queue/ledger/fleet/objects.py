"""The list of objects in the store of bodies: noted before they exist, kept until they are gone.

A publication whose object is not on the list is refused (`unstored`), so that whoever deletes
what is not needed never takes what is about to be published.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger

_BATCH = 200
_AGAIN_S = 3600.0
"""Whoever took an object to delete it and said nothing for so long is taken for dead. Longer than
any library tries, so that its request cannot arrive after that."""


@dataclass(frozen=True, slots=True)
class NotedObject:
    """One object, and the trajectory for which it was put there."""

    trajectory_id: str
    url: str

    @property
    def listed(self) -> str:
        """As the list holds it."""
        return f"{self.trajectory_id} {self.url}"


def note_object(ledger: Ledger, noted: NotedObject, *, grace_s: float) -> bool:
    """List an object that will be put; it is kept for `grace_s` although no body names it.

    False when that object is being deleted just now: it needs another place.

    Raises:
        RedisUnavailable, RedisFull: to be repeated.
    """
    return bool(ledger.call("object_note", object=noted.listed, grace_s=grace_s))


def unneeded_objects(ledger: Ledger, base: str, *, grace_s: float) -> list[NotedObject]:
    """Objects below the URL `base` that no body names: the caller has to delete them.

    Args:
        ledger: whose list.
        base: of the store; objects of other stores are left alone.
        grace_s: how often an object is looked at.

    Raises:
        RedisUnavailable, RedisFull: to be repeated.
    """
    folder = base.rstrip("/") + "/"
    found = ledger.call("object_sweep", base=folder, grace_s=grace_s, again_s=_AGAIN_S, most=_BATCH)
    return [NotedObject(*member.decode().split(" ", 1)) for member in found]


def objects_gone(ledger: Ledger, objects: Sequence[NotedObject]) -> None:
    """Take deleted objects off the list.

    Raises:
        RedisUnavailable, RedisFull: they are named for deletion once more.
    """
    if objects:
        with explained(ledger.url):
            ledger.client.zrem(ledger.key("objects:doomed"), *[noted.listed for noted in objects])
