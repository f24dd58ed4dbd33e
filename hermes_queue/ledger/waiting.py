"""Waiting jobs, looked at without taking them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from hermes_queue.bodies import codec
from hermes_queue.errors import SchemaTooNew
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.poison import item_hash
from hermes_queue.models import TrajectoryJob

CLAIM_S = 86_400
"""Time for which an environment that one worker prepares ahead is left alone by the others."""
_BRANCHES = 4
"""Children of a node that `next_waiting` looks at."""
_FIELDS = ("state", "deaths", "unseen_deaths", "quarantine_deaths", "job")


def next_waiting(ledger: Ledger, lanes: Sequence[str], *, most: int) -> list[str]:
    """Ids of jobs that are next in these lanes, at most `most`: some of each of the next branches.

    It looks at few branches, however many there are, in four round trips.

    Raises:
        RedisUnavailable: no answer.
    """
    nodes = list(lanes)
    for _ in ("team", "run", "env"):
        found = _first_of(ledger, [f"sched:open:{node}" for node in nodes], _BRANCHES)
        nodes = [f"{node}|{child}" for node, of in zip(nodes, found, strict=True) for child in of]
        nodes = nodes[:most]
    each = max(1, most // max(1, len(nodes)))
    found = _first_of(ledger, [f"sched:jobs:{leaf}" for leaf in nodes], each)
    return [name for of_leaf in found for name in of_leaf][:most]


def _first_of(ledger: Ledger, keys: Sequence[str], count: int) -> list[list[str]]:
    """The first members of sorted sets; none of a key that is of another type."""
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        for name in keys:
            pipe.zrange(ledger.key(name), 0, count - 1)
        found: list[Any] = pipe.execute(raise_on_error=False)
    for each in found:
        if isinstance(each, Exception) and not isinstance(each, redis.ResponseError):
            raise each
    return [
        [] if isinstance(each, Exception) else [name.decode(errors="replace") for name in each]
        for each in found
    ]


def waiting_jobs(ledger: Ledger, trajectory_ids: Sequence[str]) -> list[TrajectoryJob | None]:
    """Each job if it waits and no worker has died under it, else None.

    Raises:
        RedisUnavailable: no answer.
    """
    if not trajectory_ids:
        return []
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        for name in trajectory_ids:
            pipe.hmget(ledger.key(f"traj:{name}"), _FIELDS)
        found = pipe.execute()
    return [_job(name, fields) for name, fields in zip(trajectory_ids, found, strict=True)]


def _job(trajectory_id: str, fields: Sequence[Any]) -> TrajectoryJob | None:
    state, *deaths, body = fields
    if state != b"queued" or body is None or any(each not in (None, b"0") for each in deaths):
        return None
    try:
        return codec.decode_job(body, trajectory_id)
    except (SchemaTooNew, ValueError):
        return None  # whoever takes it reports it


def claim_preparation(ledger: Ledger, job: TrajectoryJob, *, owner: str) -> str | None:
    """The `needs` of the job if this worker is to prepare its item ahead of time, else None.

    Each item is claimed once for `CLAIM_S`, by one worker of the fleet, and none under which
    workers died: what kills a worker that prepares it would otherwise kill one after the other.

    Raises:
        RedisUnavailable, RedisFull: it may be claimed.
    """
    item = item_hash(job)
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        pipe.hexists(ledger.key("poison"), item)
        pipe.set(ledger.key(f"ahead:{item}"), owner, nx=True, ex=CLAIM_S)
        pipe.hget(ledger.key(f"group:{job.group_id}"), "needs")
        is_poison, claimed, needs = pipe.execute()
    return (needs or b"").decode(errors="replace") if claimed and not is_poison else None
