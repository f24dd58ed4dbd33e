"""What a regrade takes from the records of a file or a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from envs.base import Environment, NotRecorded, Regradable, Unscored, load_env
from hermes_queue import extensions
from hermes_queue.bodies import codec
from hermes_queue.errors import InputError
from hermes_queue.models import Regraded, ScoredTrajectory, TrajectoryGroup

WORK_MAX_BYTES = 1 << 20
"""Largest work of one record as JSON: it travels in a job, and no bundled env records more."""
_REASON_CHARACTERS = 200

UNMEASURED = "it was not measured"
NO_TURN = "its agent had no turn"
IS_REGRADE = "it is a regrade itself"
ANOTHER = "another record of the same trajectory is regraded"
NOTHING_LOST = frozenset((UNMEASURED, IS_REGRADE))
"""Reasons to pass a record over that leave no score without its counterpart."""


@dataclass(frozen=True, slots=True)
class RecordedWork:
    """The work of one trajectory, with the score that it has."""

    env: str
    instance_id: str
    record: Regraded
    outcome: dict[str, Any]

    def params(self) -> dict[str, Any]:
        """What the agent of a regrade's job has as parameters."""
        return {"outcome": self.outcome, "record": self.record.model_dump(mode="json")}


@dataclass(slots=True)
class PassedOver:
    """Records that are not regraded, by reason."""

    reasons: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    """The first trajectory of each reason."""

    def add(self, reason: str, trajectory_id: str) -> None:
        """Count a record."""
        self.reasons[reason] += 1
        self.first.setdefault(reason, trajectory_id)

    def lines(self) -> list[str]:
        """One line for each reason."""
        return [
            f"not regraded: {count} ({self.first[reason]}{', ...' * (count > 1)}): {reason}"
            for reason, count in self.reasons.items()
        ]


def read_groups(source: str, *, stream: bool, passed_over: PassedOver) -> Iterator[TrajectoryGroup]:
    """The finished groups of `source`: a file of records if there is one of that name, else a run.

    Args:
        source: a path, or a run id.
        stream: whether there is a Redis whose results stream may hold the run. Its archive is read
            in any case.
        passed_over: counts groups whose records are gone.

    Raises:
        InputError: the file cannot be read, or is not one of records.
        HermesQueueError: see `read_records` and `replay`.
    """
    if Path(source).exists():
        from hermes_queue.results.record_file import read_records

        return read_records(Path(source))
    if source.endswith((".jsonl", ".parquet")) or "/" in source:
        raise InputError(f"{source}: no such file; regrade takes a file of records, or a run id")
    from hermes_queue.results.replay import replay

    return replay(
        run=source,
        stream=stream,
        allow_evaluation=True,
        on_missing=lambda error: passed_over.add(f"its records are gone: {error}"[:500], source),
    )


def recorded_work(
    groups: Iterable[TrajectoryGroup],
    passed_over: PassedOver,
    keep: Callable[[ScoredTrajectory], bool] = lambda _: True,
    *,
    env: str | None = None,
) -> list[RecordedWork]:
    """The work in every measured record of `groups` that `keep` takes, each trajectory once.

    Args:
        groups: of the source.
        passed_over: counts the other records.
        keep: whether a record is meant at all.
        env: the env that the caller names. Only its code is imported by a module's path: a record
            may be anybody's, and would choose what runs here.

    Raises:
        ConfigurationError: an env of the records cannot be loaded.
    """
    found: dict[str, RecordedWork] = {}
    envs = {*extensions.known("env"), env}
    for group in groups:
        for record in filter(keep, group.members):
            name = record.trajectory_id
            try:
                if record.env not in envs:
                    why = f"env {record.env} is not installed: if it is yours, name it with --env"
                    raise NotRecorded(why)
                work = _work_in(record, load_env(record.env))
            except NotRecorded as reason:
                passed_over.add(str(reason), name)
                continue
            if found.setdefault(name, work) != work:  # of another life of its run
                passed_over.add(ANOTHER, name)
    return list(found.values())


def _work_in(record: ScoredTrajectory, env: Environment[Any]) -> RecordedWork:
    if isinstance(env, Unscored):
        raise NotRecorded(f"env {record.env} has no verifier")
    if not isinstance(env, Regradable):
        raise NotRecorded(
            f"env {record.env} grades what the agent left in its slot, which records do not hold"
        )
    if record.regraded is not None:
        raise NotRecorded(IS_REGRADE)
    if record.score is None:
        raise NotRecorded(UNMEASURED)
    if not record.turns:
        raise NotRecorded(NO_TURN)
    outcome = dict(env.outcome(record))
    try:
        work = RecordedWork(record.env, record.instance_id, _named(record, record.score), outcome)
        size_bytes = len(codec.encode_item(work.params()))
    except UnicodeEncodeError as error:
        raise NotRecorded("its work has half a character, which UTF-8 cannot encode") from error
    except ValidationError as error:
        raise NotRecorded(f"its {error.errors()[0]['loc'][0]} is invalid") from error
    if size_bytes > WORK_MAX_BYTES:
        raise NotRecorded(f"its work has more than {WORK_MAX_BYTES} bytes")
    return work


def _named(record: ScoredTrajectory, score: float) -> Regraded:
    """What the new record says of the old one. Raises ValidationError."""
    reason = record.report.get("reason")
    return Regraded(
        run_id=record.run_id,
        trajectory_id=record.trajectory_id,
        score=score,
        reason=reason[:_REASON_CHARACTERS] if isinstance(reason, str) else "",
        env_version=record.provenance.env_version,
        item_sha256=record.provenance.item_sha256,
        created=record.created,
    )
