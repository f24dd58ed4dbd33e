"""Every trajectory that runs now, by the leases in Redis.

A worker's heartbeat lists only those that have run longest, and asking all workers would take as
long as the slowest one. The ledger knows each, with the stage as of its last renewal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import click
import redis

from hermes_queue.cli.watch.table import age, print_table
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.terminal.escapes import label
from hermes_queue.terminal.output import echo

MOST = 50_000
"""Trajectories that are read; further ones are counted."""
_AT_ONCE = 1000
_UNKNOWN = "?"
_FIELDS = ("owner", "stage", "begun", "attempt", "lane")
_NOTHING: Sequence[bytes | None] = (None,) * len(_FIELDS)


@dataclass(frozen=True, slots=True)
class RunningTrajectory:
    """One trajectory, as far as this Redis user may know."""

    trajectory_id: str
    stage: str
    age_s: float | None
    """Since its attempt began; None = unknown."""
    attempt: int | None
    lane: str
    worker: str
    host: str
    turns: int | None = None
    """Known of those that their worker lists in its heartbeat."""
    label: str = ""


@dataclass(frozen=True, slots=True)
class AllRunning:
    """All of them, the oldest first."""

    items: Sequence[RunningTrajectory]
    total: int
    """With those that were not read."""


def all_running(
    ledger: Ledger, workers: Iterable[Mapping[str, Any]], now: float, *, worker: str | None = None
) -> AllRunning:
    """Read them.

    Args:
        ledger: of the deployment. A user without rights on jobs gets ids alone, and what
            heartbeats say.
        workers: the heartbeats, by `Ledger.workers`.
        now: Unix seconds of Redis' clock.
        worker: only those of the worker of this name.

    Raises:
        RedisUnavailable: Redis does not answer.
    """
    client: Any = ledger.client
    known = list(workers)
    names = {str(each.get("owner", "")): each for each in known}
    listed = {str(e["trajectory_id"]): {**e, "of": w} for w in known for e in w.get("oldest", ())}
    with explained(ledger.url):
        total = client.zcard(ledger.key("leases"))
        ids = [
            each.decode(errors="replace")
            for each in client.zrange(ledger.key("leases"), 0, MOST - 1)
        ]
        rows = _rows(ledger, ids)
    found = [_item(name, row, names, listed, now) for name, row in zip(ids, rows, strict=True)]
    if worker is not None:
        found = [each for each in found if each.worker == worker]
        total = len(found)
    found.sort(key=lambda each: (-(each.age_s or 0.0), each.trajectory_id))
    return AllRunning(found, total)


def print_running(worker: str | None, *, rows: int, page: int, as_json: bool) -> None:
    """Print one page of all trajectories that run, or of those of a worker."""
    with closing(Ledger.connect()) as ledger:
        with explained(ledger.url):
            seconds, micros = ledger.client.time()
        heartbeats = ledger.workers()
        if worker is not None and worker not in {str(each.get("name")) for each in heartbeats}:
            raise click.ClickException(f"there is no worker {worker!r}: see `workers list`")
        found = all_running(ledger, heartbeats, seconds + micros / 1e6, worker=worker)
    first = (page - 1) * rows
    shown = found.items[first : first + rows]
    if as_json:
        for each in shown:
            echo(json.dumps(asdict(each)))
        return
    table = [["AGE", "STAGE", "TRY", "LANE", "WORKER", "HOST", "TRAJECTORY"]]
    for each in shown:
        waited = "?" if each.age_s is None else age(each.age_s)
        tried = "?" if each.attempt is None else str(each.attempt)
        row = [waited, each.stage, tried, each.lane, each.worker, each.host, each.trajectory_id]
        table.append([label(cell) for cell in row])
    if not shown:
        echo(f"none on page {page}, of {found.total} that run" if page > 1 else "nothing runs")
        return
    print_table(table)
    last = first + len(shown)
    more = f"; --page {page + 1} has more" if last < len(found.items) else ""
    echo(f"{first + 1} to {last} of {found.total} that run{more}")


def _rows(ledger: Ledger, ids: Sequence[str]) -> list[Sequence[bytes | None]]:
    """Fields of each; all None if this user may not read jobs, or the hash is not ours."""
    rows: list[Sequence[bytes | None]] = []
    for start in range(0, len(ids), _AT_ONCE):
        with ledger.client.pipeline(transaction=False) as pipe:
            for each in ids[start : start + _AT_ONCE]:
                pipe.hmget(ledger.key(f"traj:{each}"), _FIELDS)
            answers: list[Any] = pipe.execute(raise_on_error=False)
        rows += [_NOTHING if isinstance(each, redis.ResponseError) else each for each in answers]
    return rows


def _item(
    name: str,
    row: Sequence[bytes | None],
    workers: Mapping[str, Mapping[str, Any]],
    listed: Mapping[str, Mapping[str, Any]],
    now: float,
) -> RunningTrajectory:
    texts = (each.decode(errors="replace") if each else "" for each in row)
    owner, stage, begun, attempt, lane = texts
    said = listed.get(name, {})
    worker = workers.get(owner) or said.get("of") or {}
    age_s = now - float(begun) if _is_number(begun) else None
    if age_s is None and said:
        age_s = float(said["age_s"]) + float(worker.get("silent_s", 0.0))
    return RunningTrajectory(
        trajectory_id=name,
        stage=stage or str(said.get("stage", _UNKNOWN)),
        age_s=None if age_s is None else round(max(0.0, age_s), 1),
        attempt=int(attempt) if attempt.isdecimal() else said.get("attempt"),
        lane=lane,
        worker=str(worker.get("name") or owner or _UNKNOWN),
        host=str(worker.get("host") or _UNKNOWN),
        turns=said.get("turns"),
        label=str(said.get("label", "")),
    )


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
