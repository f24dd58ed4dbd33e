"""Runs dead letters and the failed trajectories of a run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import DeadLetters, Ledger
from hermes_queue.ledger.dead import Letter, LetterFilter, as_new_group, revived


@dataclass(frozen=True, slots=True)
class Rerun:
    """A failed trajectory, and the one that replaces it."""

    old: str
    new: str
    cause: str


def rerun_letters(
    ledger: Ledger, letters: Iterable[Letter], *, on_full: Callable[[int], None] | None = None
) -> Iterator[Rerun]:
    """Enqueue the jobs of dead letters again and delete the letters, one by one.

    A call that was interrupted is completed by the next one. While too many jobs wait for workers,
    this waits and calls `on_full`, as `enqueue` does.

    Raises:
        ConfigurationError: a letter holds no job, or its run is cancelled.
        SchemaTooNew, RedisUnavailable, RedisFull: the remaining letters are unchanged.
    """
    dead = DeadLetters(ledger)
    for letter in letters:
        job = revived(letter)
        enqueue(
            [job], ledger=ledger, on_full=on_full
        )  # no effect if an interrupted call has done it
        # Last: if we die before, the letter is found again and the job, already claimed, skipped.
        # In the other order the job would be lost.
        dead.purge(letter)
        yield Rerun(str(job.requeued_from), job.trajectory_id, letter.fields["cause"])


def rerun_failed(
    ledger: Ledger, run_id: str, cause: str = "", *, on_full: Callable[[int], None] | None = None
) -> Iterator[Rerun]:
    """Enqueue the failed trajectories of a run, dead letters included, each as a new group.

    Failed samples that a refill replaced are skipped, and so are revoked ones. With `cause`,
    only failures of that cause are enqueued. `on_full`: as `rerun_letters`.

    Raises:
        ConfigurationError, SchemaTooNew, RedisUnavailable, RedisFull: as `rerun_letters`.
    """
    selection = LetterFilter(run_id=run_id, cause=cause)
    letters = [each for each in DeadLetters(ledger).find(selection) if each.fields.get("job")]
    yield from rerun_letters(ledger, letters, on_full=on_full)
    key = ledger.key(f"failed:{run_id}")
    client: Any = ledger.client
    with explained(ledger.url):
        found = list(client.hscan_iter(key, count=500))
    for name, value in found:
        failed_of, _, text = json.loads(value)
        if cause in ("", failed_of):
            job = as_new_group(text, name.decode())
            enqueue([job], ledger=ledger, on_full=on_full)
            with explained(ledger.url):  # last, for the same reason
                client.hdel(key, name)
            yield Rerun(name.decode(), job.trajectory_id, failed_of)
