"""Dead letters: failures that need a person, with their evidence, in the stream `dead`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import redis

from hermes_queue.bodies import codec
from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.models import GroupPolicy, TrajectoryJob

_PAGE = 500
_ALWAYS = ("cause", "reason", "run_id", "group_id", "env", "instance_id")
"""Fields that readers may count on: consumers write letters, too."""
LOG_TTL_S = 86400
"""Expiry of a worker's last log lines: the jobs that died with it end before."""


@dataclass(frozen=True, slots=True)
class Letter:
    """One dead letter."""

    id: str
    fields: dict[str, str]
    """Always `_ALWAYS`, "" where the writer left one out. For a job also trajectory_id, stage,
    owner, attempts, job, died (a line per worker: unix seconds, owner, stage) and log (the last
    lines of the worker that died last, or that hit the bug). For a group that could not be
    consumed also consumer_group and members."""

    @property
    def age_s(self) -> float:
        """Seconds since it was written, by this machine's clock."""
        return time.time() - int(self.id.partition("-")[0]) / 1000


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Selects letters; an empty field matches all."""

    run_id: str = ""
    env: str = ""
    cause: str = ""
    older_than_s: float = 0.0

    def matches(self, letter: Letter) -> bool:
        """Whether `letter` is selected."""
        required = {"run_id": self.run_id, "env": self.env, "cause": self.cause}
        return letter.age_s >= self.older_than_s and all(
            not value or letter.fields.get(name) == value for name, value in required.items()
        )


class DeadLetters:
    """The dead letters of one deployment."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._client: Any = ledger.client
        self._stream = ledger.key("dead")

    def keep_log(self, owner: str, text: str) -> None:
        """Store the last log lines of a worker, replacing earlier ones, for letters of its jobs.

        Raises:
            RedisUnavailable, RedisFull: the earlier ones may still be stored.
        """
        with explained(self._ledger.url):
            self._client.set(self._ledger.key(f"log:{owner}"), text, ex=LOG_TTL_S)

    def find(self, selection: LetterFilter | None = None) -> Iterator[Letter]:
        """Letters that match, oldest first."""
        start = "-"
        while True:
            with explained(self._ledger.url):
                page = self._client.xrange(self._stream, min=start, count=_PAGE)
            for entry_id, raw in page:
                letter = _letter(entry_id, raw)
                if selection is None or selection.matches(letter):
                    yield letter
            if len(page) < _PAGE:
                return
            start = f"({page[-1][0].decode()}"

    def get(self, letter_id: str) -> Letter:
        """One letter.

        Raises:
            ConfigurationError: the id is malformed or unknown.
            RedisUnavailable: Redis does not answer, or refuses us.
        """
        with explained(self._ledger.url):
            try:
                page = self._client.xrange(self._stream, min=letter_id, max=letter_id)
            except redis.ResponseError as error:
                if "stream ID" not in str(error):  # such as missing rights
                    raise
                raise ConfigurationError(f"{letter_id!r} is not the id of a dead letter") from error
        if not page:
            raise ConfigurationError(f"there is no dead letter {letter_id!r}")
        return _letter(*page[0])

    def purge(self, letter: Letter) -> bool:
        """Delete a letter; returns whether it existed."""
        with explained(self._ledger.url):
            return bool(self._client.xdel(self._stream, letter.id))

    def expire(self, age_s: float) -> int:
        """Delete letters older than `age_s`, by Redis' clock; returns their number."""
        with explained(self._ledger.url):
            oldest = int(1000 * (self._client.time()[0] - age_s))
            return int(self._client.xtrim(self._stream, minid=oldest, approximate=True))


def revived(letter: Letter) -> TrajectoryJob:
    """The job of a letter, see `as_new_group`.

    Raises:
        ConfigurationError: the letter holds no job, e.g. because it is about a group, or one that
            is damaged.
        SchemaTooNew: a newer producer wrote the job.
    """
    if not letter.fields.get("job"):
        raise ConfigurationError(
            f"dead letter {letter.id} holds no job to run again (cause {letter.fields['cause']})"
        )
    old = letter.fields.get("trajectory_id") or f"dead letter {letter.id}"
    return as_new_group(letter.fields["job"], old, letter.id)


def as_new_group(text: str | bytes, old: str, occasion: str = "") -> TrajectoryJob:
    """The job that ran as `old`, as a separate group that refers to it.

    Its old group is closed, so it cannot return there. The ids are derived from `old` and the
    `occasion`: a repeated call makes the same job.

    Raises:
        ConfigurationError: it is no job.
        SchemaTooNew: a newer producer wrote the job.
    """
    job = _kept_job(text, old)
    digest = hashlib.sha256(f"{old}\0{occasion}".encode()).hexdigest()[:20]
    group_id = f"{job.run_id}.{digest}"
    return job.model_copy(
        update={
            "group_id": group_id,
            "trajectory_id": f"{group_id}.0",
            "sample_index": 0,
            "group_size": 1,
            "group_policy": GroupPolicy(),
            "requeued_from": old,
        }
    )


def as_whole_group(text: str | bytes, old: str) -> list[TrajectoryJob]:
    """All samples of the group of the job that ran as `old`, as a new group of the same size.

    The ids are derived from that group, whichever of its jobs is given: a group can be made again
    once, and a repeated call makes the same jobs. Each names the old trajectory of its sample.

    Raises:
        ConfigurationError: it is no job.
        SchemaTooNew: a newer producer wrote the job.
    """
    job = _kept_job(text, old)
    digest = hashlib.sha256(f"{job.group_id}\0whole".encode()).hexdigest()[:20]
    first = job.model_copy(update={"group_id": f"{job.run_id}.{digest}"})
    samples = job.group_size + job.group_policy.extra_samples
    return [
        first.sample(n).model_copy(update={"requeued_from": f"{job.group_id}.{n}"})
        for n in range(samples)
    ]


def _kept_job(text: str | bytes, old: str) -> TrajectoryJob:
    try:
        return codec.decode_job(text, old)
    except ValueError as error:
        raise ConfigurationError(f"what is kept of {old} is no job that can run again") from error


def _letter(entry_id: bytes, raw: dict[bytes, bytes]) -> Letter:
    texts = {n.decode(errors="replace"): v.decode(errors="replace") for n, v in raw.items()}
    return Letter(entry_id.decode(), dict.fromkeys(_ALWAYS, "") | texts)
