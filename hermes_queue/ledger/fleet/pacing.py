"""Runs that follow their trainer: no more than N of their groups are ahead of it.

A fleet that is faster than the trainer makes groups that are too old when their turn comes. A group
is *ahead* from its first job's begin until the trainer has trained it, or it is clear that it never
will: its policy dropped it, it was refused, dropped as too old, or acknowledged for any other
reason. While N groups are ahead, jobs of further ones are set aside, and workers take other runs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import RUN_TTL_S, Ledger

AHEAD_MAX = 1_000_000
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class RunPace:
    """How far a run is ahead of its trainer."""

    max_ahead: int
    ahead: int
    """Groups that have begun and are neither trained nor given up; above the bound if a crash of
    the trainer took groups out of its weights."""
    held: int
    """Jobs that wait for the trainer; part of `RunStatus.queued`."""
    held_since: float | None
    """When the first of them was set aside, Unix seconds of Redis' clock; None if there is none."""


def set_pace(
    ledger: Ledger, run_id: str, max_ahead: int | None, *, readers: Sequence[str] = ()
) -> None:
    """Begin no new group of a run while `max_ahead` are ahead of its trainer; None = no bound.

    The run need not exist yet. Groups that have begun by now do not count. `readers` are the
    trainer's consumer groups; a trainer's feed enters itself if nobody else has.

    Raises:
        ConfigurationError: no number from 1 to `AHEAD_MAX`.
    """
    if max_ahead is not None and not 1 <= max_ahead <= AHEAD_MAX:
        raise ConfigurationError(f"{max_ahead} groups ahead: use 1 to {AHEAD_MAX}")
    ledger.call(
        "run_pace",
        run_id=run_id,
        max_ahead=max_ahead,
        readers=_listed(readers) if readers else "",
        run_ttl_s=RUN_TTL_S,
    )


def end_pace(ledger: Ledger, run_id: str, *, readers: Sequence[str]) -> None:
    """Pace a run no longer, if it follows the trainer of these consumer groups.

    Raises:
        RedisUnavailable: call it again.
    """
    [followed] = ledger.hash_fields(f"run:{run_id}", "ahead_of")
    if followed == _listed(readers):
        set_pace(ledger, run_id, None)


def pace_of(ledger: Ledger, run_id: str) -> RunPace | None:
    """How far a run is ahead of its trainer; None if it is not paced."""
    with explained(ledger.url), ledger.client.pipeline(transaction=False) as pipe:
        ask(pipe, ledger, run_id)
        return read(pipe.execute())


def ask(pipe: Any, ledger: Ledger, run_id: str) -> None:
    """Add the `ANSWERS` commands that `read` needs to a pipeline."""
    pipe.hget(ledger.key(f"run:{run_id}"), "max_ahead")
    pipe.hlen(ledger.key(f"run:{run_id}:ahead"))
    pipe.zcard(ledger.key(f"run:{run_id}:held"))
    pipe.zrange(ledger.key(f"run:{run_id}:held"), 0, 0, withscores=True)


ANSWERS = 4


def read(answers: Sequence[Any]) -> RunPace | None:
    """The pace in the answers to `ask`; None if the run is not paced."""
    most, ahead, held, first = answers
    return RunPace(int(most), ahead, held, first[0][1] if first else None) if most else None


def count(
    ledger: Ledger,
    run_id: str,
    *,
    readers: Sequence[str],
    off: Sequence[str] = (),
    on: Sequence[tuple[str, str]] = (),
) -> bool:
    """Count groups off that are trained or given up, and others on; may be repeated.

    `on` are groups, with their entries in the stream, that are to be trained after all.

    Returns:
        Whether the run is paced by the trainer of these consumer groups.
    """
    listed = _listed(readers)
    return bool(
        ledger.call("run_count", run_id=run_id, readers=listed, run_ttl_s=RUN_TTL_S, off=off, on=on)
    )


def groups_ahead(ledger: Ledger, run_id: str) -> list[str]:
    """Ids of the groups that are ahead of the run's trainer."""
    client: Any = ledger.client
    with explained(ledger.url):
        found = client.hkeys(ledger.key(f"run:{run_id}:ahead"))
    return [group_id.decode(errors="replace") for group_id in found]


def untrained(ledger: Ledger, run_id: str, reader: str) -> Iterator[tuple[str, str]]:
    """The run's groups in the stream that a consumer group has not acknowledged: (id, entry)."""
    client: Any = ledger.client
    stream = ledger.key("results")
    with explained(ledger.url):
        found = [info for info in client.xinfo_groups(stream) if info["name"] == reader.encode()]
        after = "-"
        while page := client.xpending_range(stream, reader, after, "+", _PAGE):
            with client.pipeline(transaction=False) as pipe:
                for each in page:
                    pipe.xrange(stream, each["message_id"], each["message_id"])
                for entries in pipe.execute():
                    yield from _of_run(entries, run_id)
            after = f"({page[-1]['message_id'].decode()}"
        after = f"({found[0]['last-delivered-id'].decode()}" if found else "-"
        while entries := client.xrange(stream, after, "+", count=_PAGE):
            yield from _of_run(entries, run_id)
            after = f"({entries[-1][0].decode()}"


def _of_run(entries: Sequence[Any], run_id: str) -> Iterator[tuple[str, str]]:
    for entry_id, fields in entries:
        group_id = fields.get(b"group_id")  # a foreign entry has none
        if group_id and fields.get(b"run_id") == run_id.encode():
            yield group_id.decode(errors="replace"), entry_id.decode()


def _listed(readers: Sequence[str]) -> str:
    return json.dumps(sorted(readers))
