"""Work that one worker has handed over to be graded by another.

traj:{id} says by a token that there is some; `handover:{id}` holds it. Whatever ends the trajectory
deletes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple, cast

from hermes_queue.keyspace.calls import ScriptCall
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.answers import Claim, Spent
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.ledger.transitions import warn_of_budget
from hermes_queue.wire.ids import run_of

HandoverVerdict = Literal["ok", "stale", "nobody", "elsewhere", "full", "unstored"]


class Grading(NamedTuple):
    """Whether workers grade what agents of a lane have done."""

    state: Literal["graded", "waits", "idle"]
    """`waits`: there is such work, and no such worker; `idle`: neither."""
    hosts: frozenset[str]
    """With `waits`, hosts of such workers that ended during the last day."""


class NeededSnapshot(NamedTuple):
    """The snapshot that another worker needs to go on with a trajectory."""

    snapshot_id: str
    """"" = none."""
    is_handed: bool
    """Whether it belongs to work that waits to be graded."""


def hand_over(
    claim: Claim,
    body: bytes,
    *,
    owner: str,
    lane: str,
    handover: str,
    snapshot_id: str,
    only_host: str,
    most: int,
    ttl_s: int,
    used_s: float,
    spent: Spent,
) -> ScriptCall[HandoverVerdict]:
    """Hand a running trajectory of `lane` over; its lease is then gone. May be repeated.

    `handover` is a random token of this hand-over, `spent` what its agent has cost. Unless the
    result is `ok`, nothing was done: `stale`: the lease is another worker's, `nobody`: no worker
    grades this lane, `elsewhere`: workers do that are not on `only_host`, `full`: as many as `most`
    wait to be graded.
    """
    run_id = run_of(claim.trajectory_id)

    def read(answer: Any) -> HandoverVerdict:
        warn_of_budget(run_id, answer.warning)
        return cast(HandoverVerdict, answer.verdict.decode())

    return ScriptCall.with_body(
        "handover",
        read,
        body=body,
        id=claim.trajectory_id,
        run_id=run_id,
        owner=owner,
        epoch=claim.epoch,
        lane=lane,
        handover=handover,
        snapshot=snapshot_id,
        only_host=only_host,
        most=most,
        ttl_s=ttl_s,
        used_s=max(0.0, used_s),
        cost_usd=spent.cost,
        tokens=spent.tokens,
    )


def read_handover(ledger: Ledger, trajectory_id: str, *, most_bytes: int) -> bytes | None:
    """What was handed over; None if it is gone.

    Raises:
        ValueError: it is larger than `most_bytes`, and so not ours.
        RedisUnavailable: repeat the call.
    """
    key = ledger.key(f"handover:{trajectory_id}")
    with explained(ledger.url):
        client: Any = ledger.client
        if client.strlen(key) > most_bytes:
            raise ValueError(f"work of more than {most_bytes} bytes")
        found: bytes | None = client.get(key)
    return found


def note_graders(ledger: Ledger, lanes: Sequence[str], *, host: str, ttl_s: float) -> None:
    """Report that a worker of this host grades what agents of these lanes hand over.

    Raises:
        RedisUnavailable, RedisFull: repeat the call; agents' workers grade for themselves else.
    """
    keys = [f"graders:{lane}" for lane in lanes]
    ledger.call("graders_note", graders=keys, host=host, ttl_s=max(1.0, ttl_s))


def grading_of(ledger: Ledger, lane: str, graded_in: Iterable[str]) -> Grading:
    """Who grades what agents of a lane have done, which waits in the lanes `graded_in`.

    Raises:
        RedisUnavailable: repeat the call.
    """
    waiting = [f"sched:open:{each}" for each in graded_in]
    answer = ledger.call("graders_seek", lane=lane, waiting=waiting)
    hosts = frozenset(host.decode(errors="replace") for host in answer.hosts)
    return Grading(answer.state.decode(), hosts)


def snapshot_needs(ledger: Ledger, trajectory_ids: Iterable[str]) -> dict[str, NeededSnapshot]:
    """The snapshot that each of these trajectories may go on from.

    Raises:
        RedisUnavailable: repeat the call.
    """
    ids = list(trajectory_ids)
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        for each in ids:
            pipe.hmget(ledger.key(f"traj:{each}"), ["snapshot", "handed"])
        found = pipe.execute()
    return {
        each: NeededSnapshot((snapshot or b"").decode(errors="replace"), bool(handed))
        for each, (snapshot, handed) in zip(ids, found, strict=True)
    }
