"""Runs dead letters and the failed trajectories of a run again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hermes_queue.broker.enqueue import enqueue
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger import DeadLetters, Ledger
from hermes_queue.ledger.dead import (
    Letter,
    LetterFilter,
    as_new_group,
    as_whole_group,
    revived,
)
from hermes_queue.wire.ids import group_of


@dataclass(frozen=True, slots=True)
class Rerun:
    """A failed trajectory and the one that replaces it, or their groups."""

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
    yield from rerun_letters(ledger, _letters(ledger, run_id, cause), on_full=on_full)
    for old, failed_of, text in _failed(ledger, run_id, cause):
        job = as_new_group(text, old)
        enqueue([job], ledger=ledger, on_full=on_full)
        _forget(ledger, run_id, old)  # last, for the same reason
        yield Rerun(old, job.trajectory_id, failed_of)


def rerun_groups(
    ledger: Ledger, run_id: str, cause: str = "", *, on_full: Callable[[int], None] | None = None
) -> Iterator[Rerun]:
    """Enqueue all samples of each group with a failed trajectory again, as a new group.

    It has the size of the old one, for readers that take whole groups only; `old` and `new` are
    groups. Which trajectories count, `cause` and `on_full`: as `rerun_failed`. A group is made
    again once.

    Raises:
        ConfigurationError, SchemaTooNew, RedisUnavailable, RedisFull: as `rerun_letters`.
    """
    dead, seen = DeadLetters(ledger), set[str]()

    def again(text: str, old: str, failed_of: str) -> Iterator[Rerun]:
        jobs = as_whole_group(text, old)
        enqueue(jobs, ledger=ledger, on_full=on_full)
        if (new := jobs[0].group_id) not in seen:
            seen.add(new)
            yield Rerun(group_of(str(jobs[0].requeued_from)), new, failed_of)

    for letter in _letters(ledger, run_id, cause):
        fields = letter.fields
        found = [*again(fields["job"], fields["trajectory_id"], fields["cause"])]
        dead.purge(letter)  # last, as in `rerun_letters`
        yield from found
    for old, failed_of, text in _failed(ledger, run_id, cause):
        found = [*again(text, old, failed_of)]
        _forget(ledger, run_id, old)
        yield from found


def _letters(ledger: Ledger, run_id: str, cause: str) -> list[Letter]:
    """The run's dead letters that hold a job."""
    selection = LetterFilter(run_id=run_id, cause=cause)
    return [each for each in DeadLetters(ledger).find(selection) if each.fields.get("job")]


def _failed(ledger: Ledger, run_id: str, cause: str) -> Iterator[tuple[str, str, str]]:
    """Failed trajectories that are no dead letters: (id, cause, job)."""
    client: Any = ledger.client
    with explained(ledger.url):
        found = list(client.hscan_iter(ledger.key(f"failed:{run_id}"), count=500))
    for name, value in found:
        failed_of, _, text = json.loads(value)
        if cause in ("", failed_of):
            yield name.decode(), failed_of, text


def _forget(ledger: Ledger, run_id: str, old: str) -> None:
    client: Any = ledger.client
    with explained(ledger.url):
        client.hdel(ledger.key(f"failed:{run_id}"), old)
