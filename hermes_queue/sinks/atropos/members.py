"""Groups with members that were not measured: they wait for replacements, or are dropped.

A trainer takes only groups of one size, and a failure is never a reward, so a group cannot be
sent with a gap. `hermes-queue run retry` and `hermes-queue dead requeue` run a failed member
again. The result is a group of one, whose member names the one that it repeats in
`requeued_from`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from hermes_queue.models import ScoredTrajectory, TrajectoryGroup
from hermes_queue.results.reader import DeliveredGroup

MissingPolicy = Literal["wait", "drop"]


@dataclass(frozen=True, slots=True)
class Whole:
    """A group without gaps, and all deliveries from which it was assembled."""

    group: TrajectoryGroup
    deliveries: tuple[DeliveredGroup, ...]


@dataclass(slots=True)
class _Held:
    members: dict[str, ScoredTrajectory]
    """Members by the id that a replacement names: their own, or that of the failed replacement."""
    deliveries: list[DeliveredGroup] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        return [name for name, member in self.members.items() if member.score is None]


class MissingMembers:
    """Holds groups with gaps until they are complete.

    Args:
        wait_s: time to wait after the group was finished; 0 = not at all.
    """

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._held: dict[str, _Held] = {}

    def place(self, delivered: DeliveredGroup) -> Whole | None:
        """The group that this delivery completes; None if there is none."""
        if held := self._repaired_by(delivered):
            held.deliveries.append(delivered)
        elif delivered.complete and len(delivered.members) == delivered.size:
            return Whole(delivered, (delivered,))
        else:
            members = {member.trajectory_id: member for member in delivered.members}
            held = self._held[delivered.group_id] = _Held(members, [delivered])
        if held.missing or len(held.members) != held.deliveries[0].size:
            return None
        first = held.deliveries[0]
        del self._held[first.group_id]
        members_now = tuple(held.members.values())
        whole = TrajectoryGroup(
            **first.model_dump(include={"run_id", "group_id", "env", "instance_id", "size"}),
            members=members_now,
            complete=True,
            mean=None,
            std=None,
            created=first.created,
            finished=delivered.finished,
        )
        return Whole(whole, tuple(held.deliveries))

    def held(self) -> list[DeliveredGroup]:
        """All deliveries of waiting groups."""
        return [each for held in self._held.values() for each in held.deliveries]

    def overdue(self, now: float) -> list[tuple[DeliveredGroup, ...]]:
        """Remove and return the groups that have waited for too long.

        Args:
            now: Unix seconds.
        """
        late = [
            group_id
            for group_id, held in self._held.items()
            if now - held.deliveries[0].finished >= self._wait_s
        ]
        return [tuple(self._held.pop(group_id).deliveries) for group_id in late]

    def _repaired_by(self, delivered: DeliveredGroup) -> _Held | None:
        """The held group to which these members belong, after inserting them."""
        found = None
        for member in delivered.members:
            for held in self._held.values():
                if member.requeued_from in held.missing:
                    place = member.requeued_from
                    held.members = {
                        (member.trajectory_id if name == place else name): (
                            member if name == place else old
                        )
                        for name, old in held.members.items()
                    }
                    found = held
        return found
