"""Turn journals: what another worker needs to continue a trajectory.

`journal:{id}` is a list of entries (`hermes_queue.bodies.steps`); traj:{id} says whether there is
one. Only the owner of the lease adds to it, and what ends a trajectory deletes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

from hermes_queue.keyspace.calls import ScriptCall
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.answers import Claim, Spent
from hermes_queue.ledger.ledger import Ledger

AppendVerdict = Literal["ok", "stale", "gap"]

_AT_ONCE = 16
"""Entries per round trip, each of some kilobytes."""


def append(
    claim: Claim,
    entries: Sequence[bytes],
    *,
    owner: str,
    after: int,
    ttl_s: int,
    snapshot_id: str = "",
    spent: Spent | None = None,
) -> ScriptCall[AppendVerdict]:
    """Add entries after the first `after` ones; any others there are dropped. May be repeated.

    `snapshot_id`: the newest copy of the slot's files that an entry names. `spent`: what the turns
    in it cost, as far as it is not booked; if this worker dies, the next attempt books it.

    The result is `stale` if the lease is another worker's, and `gap` if fewer entries than `after`
    are there; then nothing was added.
    """

    def read(answer: Any) -> AppendVerdict:
        return cast(AppendVerdict, answer.verdict.decode())

    return ScriptCall.of(
        "journal",
        read,
        id=claim.trajectory_id,
        owner=owner,
        epoch=claim.epoch,
        after=after,
        ttl_s=ttl_s,
        cost_usd=spent.cost if spent else 0,
        tokens=spent.tokens if spent else 0,
        snapshot=snapshot_id,
        entries=list(entries),
    )


def read_journal(ledger: Ledger, trajectory_id: str, *, most: int, most_bytes: int) -> list[bytes]:
    """All entries, oldest first; [] if there are none.

    Raises:
        ValueError: there are more than `most`, or more bytes, and so somebody else's.
        RedisUnavailable: repeat the call.
    """
    key = ledger.key(f"journal:{trajectory_id}")
    found: list[bytes] = []
    size = 0
    with explained(ledger.url):
        client: Any = ledger.client
        if client.llen(key) > most:
            raise ValueError(f"a journal of more than {most} entries")
        while entries := client.lrange(key, len(found), len(found) + _AT_ONCE - 1):
            found += entries
            size += sum(map(len, entries))
            if size > most_bytes or len(found) > most:
                raise ValueError(f"a journal of more than {most_bytes} bytes")
    return found
