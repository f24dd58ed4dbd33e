"""Selection of the trajectories that become rows of a dataset, with reasons for the others.

Of a program's conversations, those are selected whose tokens become part of it. Replies that a
program never got are in no sequence of a record, so no selection includes them.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import Field

from hermes_queue.bodies.reviews import ReviewLabel
from hermes_queue.errors import ConfigurationError, InputError
from hermes_queue.models import BranchLabel, ScoredTrajectory, StopReason, TrajectoryGroup
from hermes_queue.sinks.base import SinkOptions
from hermes_queue.wire.branches import TRAINED

_CAUGHT = ("canary", "contradicted", "cut_short", "suspect", "verifier_broken")
"""Reasons in a report which mean that the agent's code interfered with the grading."""


class Filters(SinkOptions):
    """Filters of a dataset. By default it takes every trajectory that did not fail."""

    failed: bool = False
    """Include trajectories that failed."""
    min_score: float | None = Field(default=None, description="Omit scores below this.")
    max_score: float | None = Field(default=None, description="Omit scores above this.")
    complete: bool = Field(default=False, description="Omit groups with unmeasured members.")
    mixed: bool = Field(default=False, description="Write only groups with different scores.")
    clean: bool = Field(
        default=False,
        description="Omit trajectories in which an attempt to get around the grading was seen.",
    )
    """The report has `dropped` paths, `flags`, `suspect` ones, or a reason in `_CAUGHT`."""
    tokens: bool = Field(
        default=False, description="Omit rows without the server's ids and logprobs."
    )
    stop_reasons: tuple[StopReason, ...] = Field(
        default=(),
        validation_alias="stop_reason",
        description="Write only trajectories with this stop reason; may be repeated.",
    )
    branches: tuple[BranchLabel, ...] = Field(
        default=TRAINED,
        validation_alias="branch",
        description="Write only tokens of a program's branches with this label; may be repeated. "
        "jsonl: default all.",
    )
    max_per_instance: int | None = Field(
        default=None,
        ge=1,
        description="Write at most this many rows of one instance, from all runs together.",
    )
    reviewed: tuple[ReviewLabel, ...] = Field(
        default=(),
        description="Write only trajectories with this label in --reviews; may be repeated.",
    )
    allow_evaluation: bool = Field(
        default=False,
        description="Write also trajectories of an evaluation, on which nothing may be trained.",
    )

    def described(self) -> dict[str, Any]:
        """The filters that differ from the default, for a data card."""
        return self.model_dump(exclude_defaults=True)


class Decontamination:
    """Instances that must not be in a dataset because it will be evaluated on them.

    Args:
        path: one instance id or repository (`owner/name`, or its clone URL) per line. Blank
            lines are ignored, and comments: a # at the beginning of a line or after white space.
            An instance is excluded if its id is listed, or the repository that its id contains
            (`owner__name`, as in SWE-bench).

    Raises:
        InputError: the file cannot be read, or lists nothing.
    """

    def __init__(self, path: Path) -> None:
        try:
            lines = path.read_text(
                encoding="utf-8-sig"
            ).splitlines()  # spreadsheets write a byte order mark
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{path}: cannot be read: {error}") from error
        self._listed = {_entry(line) for line in lines} - {""}
        if not self._listed:
            raise InputError(f"{path}: lists no instance and no repository")

    def __len__(self) -> int:
        return len(self._listed)

    def excludes(self, instance_id: str) -> bool:
        """Whether the instance, or its repository, is listed."""
        name = instance_id.lower()
        return name in self._listed or not self._listed.isdisjoint(_repositories(name))


def _entry(line: str) -> str:
    text = re.split(r"(?:^|\s)#", line, maxsplit=1)[0].strip().lower()
    cloned = re.match(r"^(?:https?://|git@|ssh://git@)[^/:]+[/:]([^/]+/[^/]+?)(?:\.git)?/?$", text)
    return cloned[1] if cloned else text


def _repositories(instance_id: str) -> Iterable[str]:
    """Yield `owner/name` from ids: `owner__name-123`, `owner__name.commit.kind__hash`."""
    match = re.match(r"^([^_/\s]+(?:_[^_/\s]+)*?)__([^/\s]+)$", instance_id)
    if match:
        rest = match[2]
        for owner in {match[1], match[1].removeprefix("instance_")}:  # as SWE-bench Pro has it
            yield from _beginnings(f"{owner}/{rest}", len(owner) + 1)
    elif "/" in instance_id:
        name = re.split(r"[@:#]", instance_id)[0]
        if "/" in name:
            yield from _beginnings(name, name.index("/") + 1)


def _beginnings(name: str, start: int) -> Iterable[str]:
    """Yield the name, and its prefix before each place where a number or a commit may begin."""
    yield name
    for cut in re.finditer(r"[-.]", name[start:]):  # a name may itself have such characters
        yield name[: start + cut.start()]


def tampered(trajectory: ScoredTrajectory) -> bool:
    """Whether the verifier saw an attempt to get around it."""
    return report_tampered(trajectory.report)


def report_tampered(report: Mapping[str, Any]) -> bool:
    """Whether a verifier's report, which nobody has to have validated, says so."""
    return bool(
        report.get("flags")
        or report.get("suspect")
        or report.get("dropped_count")
        or report.get("dropped")
        or caught_reason(report)
    )


def caught_reason(report: Mapping[str, Any]) -> str:
    """The reason of the report if it means that grading was interfered with, else ""."""
    reason = report.get("reason")
    return reason if isinstance(reason, str) and reason in _CAUGHT else ""


@dataclass
class Selection:
    """Applies filters and counts the trajectories that they refuse.

    `held` is the sink's own mapping: trajectories in it are neither chosen nor counted again, so
    a repeated delivery changes nothing.

    Raises:
        ConfigurationError: the sink holds instances that `exclude` lists.
    """

    filters: Filters
    held: Mapping[str, str]
    exclude: Decontamination | None = None
    refusal: Callable[[ScoredTrajectory], str] | None = None
    """The format's reason why a trajectory has no row in it; "" if it has one. Asked last, so that
    trajectories without a row do not count for `max_per_instance`."""
    left_over: Callable[[Sequence[ScoredTrajectory]], Mapping[str, str]] | None = None
    """The format's reasons, by trajectory id, why members of a group that nothing else refuses have
    no row in it: for formats whose rows are made from several members."""
    label_of: Callable[[str], str | None] | None = None
    """The label that a person gave to a trajectory; needed for `filters.reviewed`."""
    refused: Counter[str] = field(default_factory=Counter)
    """Trajectories by the filter that refused them, counted since this object was created."""
    _per_instance: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        held = sorted({i for i in self.held.values() if self.exclude and self.exclude.excludes(i)})
        if held:
            rows = sum(instance in held for instance in self.held.values())
            raise ConfigurationError(
                f"the dataset holds {rows} row(s) that the list excludes, of {', '.join(held[:3])}"
                f"{' and others' if len(held) > 3 else ''}: rows are never removed; make a new one"
            )
        self._per_instance = Counter(self.held.values())

    def choose(self, group: TrajectoryGroup) -> list[ScoredTrajectory]:
        """The members that become rows, in the group's order; they count as held from now on."""
        chosen = []
        about_group = self._group_refusal(group)
        for member in group.members:
            if member.trajectory_id in self.held:
                continue
            part = of_branches(member, self.filters.branches)
            reason = about_group or self._refusal(part)
            if reason:
                self.refused[reason] += 1
                continue
            self._per_instance[member.instance_id] += 1
            chosen.append(part)
        return self._used(chosen)

    def _used(self, chosen: list[ScoredTrajectory]) -> list[ScoredTrajectory]:
        without_row = self.left_over(chosen) if self.left_over and chosen else {}
        self.refused.update(without_row.values())
        for member in chosen:
            self._per_instance[member.instance_id] -= member.trajectory_id in without_row
        return [member for member in chosen if member.trajectory_id not in without_row]

    def _group_refusal(self, group: TrajectoryGroup) -> str:
        if self.exclude and self.exclude.excludes(group.instance_id):
            return "decontaminated"
        if self.filters.complete and not group.complete:
            return "incomplete group"
        scores = {m.score for m in group.members if m.score is not None}
        if self.filters.mixed and len(scores) < 2:
            return "group of one score"
        return ""

    def _refusal(self, member: ScoredTrajectory) -> str:
        """The reason against a member, which has the tokens of the chosen branches only."""
        filters = self.filters
        score = math.nan if member.score is None else member.score  # within no bounds
        checks = (
            (member.evaluation and not filters.allow_evaluation, "of an evaluation"),
            (member.status == "failed" and not filters.failed, "no score"),
            (filters.min_score is not None and not score >= filters.min_score, "score too low"),
            (filters.max_score is not None and not score <= filters.max_score, "score too high"),
            (filters.clean and tampered(member), "tampered"),
            (bool(filters.reviewed) and not self._has_label(member), "label"),
            (filters.tokens and not _has_tokens(member), "no tokens"),
            (
                bool(filters.stop_reasons) and member.stop_reason not in filters.stop_reasons,
                "stop reason",
            ),
            (
                filters.max_per_instance is not None
                and self._per_instance[member.instance_id] >= filters.max_per_instance,
                "enough of this instance",
            ),
        )
        reason = next((reason for refused, reason in checks if refused), "")
        return reason or (self.refusal(member) if self.refusal else "")

    def _has_label(self, member: ScoredTrajectory) -> bool:
        label = self.label_of(member.trajectory_id) if self.label_of else None
        return label in self.filters.reviewed


def _has_tokens(trajectory: ScoredTrajectory) -> bool:
    return bool(trajectory.sequences) and all(
        s.ids and len(s.ids) == len(s.loss_mask) == len(s.logprobs) and any(s.loss_mask)
        for s in trajectory.sequences or ()
    )


def counted(refused: Mapping[str, int]) -> str:
    """Counts as text for people: `3 no score, 1 tampered`."""
    ordered: Sequence[tuple[str, int]] = sorted(refused.items(), key=lambda kv: (-kv[1], kv[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered)


def of_branches(record: ScoredTrajectory, labels: Collection[BranchLabel]) -> ScoredTrajectory:
    """The record with only the token sequences of these branches.

    Our own loop has no branches: all of its sequences are `main`.
    """
    kept = tuple(each for each in record.sequences or () if each.branch in labels)
    if len(kept) == len(record.sequences or ()):
        return record
    return record.model_copy(update={"sequences": kept})
