"""Reads the groups of a file that the JSONL sink or a producer wrote."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from statistics import fmean, pstdev

from pydantic import ValidationError

from hermes_queue.bodies.codec import refuse_newer
from hermes_queue.errors import InputError
from hermes_queue.models import ScoredTrajectory, TrajectoryGroup


def read_records(path: Path) -> Iterator[TrajectoryGroup]:
    """The groups in a file of the JSONL sink, where members of a group are adjacent.

    Raises:
        InputError: the file cannot be read, or a line is not a record.
        SchemaTooNew: a line was written by a newer hermes-queue.
    """
    for _, members in groupby(_records(path), lambda record: record.group_id):
        yield _group(tuple(sorted(members, key=lambda record: record.sample_index)))


def _records(path: Path) -> Iterator[ScoredTrajectory]:
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _record(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read: {error}") from error


def _record(line: str, place: str) -> ScoredTrajectory:
    try:
        return ScoredTrajectory.model_validate_json(line)
    except ValidationError as error:
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            refuse_newer(f"{place}: the record", json.loads(line)["schema_version"])
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(f"{place}: is not a record: {where}: {first['msg']}") from error


def _group(members: tuple[ScoredTrajectory, ...]) -> TrajectoryGroup:
    first = members[0]
    scores = [m.score for m in members if m.score is not None]
    return TrajectoryGroup(
        run_id=first.run_id,
        group_id=first.group_id,
        env=first.env,
        instance_id=first.instance_id,
        size=first.group_size,
        members=members,
        complete=sum(m.status != "failed" for m in members) == first.group_size,
        mean=fmean(scores) if scores else None,
        std=pstdev(scores) if scores else None,
        created=min(m.created for m in members),
        finished=max(m.created for m in members),
    )
