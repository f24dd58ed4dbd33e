"""Checks which turn of a record continues which, and what its nodes and branches say of it."""

from __future__ import annotations

from collections.abc import Iterator

from hermes_queue.models import ScoredTrajectory, Turn


def continued(record: ScoredTrajectory) -> list[int | None]:
    """For each turn of the record: the turn whose reply it continues, None if there is none."""
    if record.schema_version == 1:
        return [index - 1 if index else None for index in range(len(record.turns))]
    return [turn.parent for turn in record.turns]


def is_delivered(turn: Turn) -> bool:
    """Whether the program got the reply; in our own loop always."""
    return turn.call is None or turn.call.status == "delivered"


def tree_violations(record: ScoredTrajectory) -> list[str]:
    """Contradictions between the turns, branches and nodes of a program; [] if there are none."""
    if record.schema_version == 1:
        named = [i for i, turn in enumerate(record.turns) if turn.branch is not None]
        return [f"version 1, but the turns {named} name branches"] if named else []
    return list(_of_turns(record)) or [*_of_branches(record), *_of_nodes(record)]


def _of_turns(record: ScoredTrajectory) -> Iterator[str]:
    for index, turn in enumerate(record.turns):
        if turn.branch is None or not 0 <= turn.branch < len(record.branches):
            yield f"turn {index}: there is no branch {turn.branch}"
        if turn.parent is None:
            continue
        if not 0 <= turn.parent < index:
            yield f"turn {index}: it cannot continue turn {turn.parent}"
        elif not is_delivered(record.turns[turn.parent]):
            yield f"turn {index}: it continues turn {turn.parent}, which was not delivered"


def _of_branches(record: ScoredTrajectory) -> Iterator[str]:
    """Each branch must be a chain of turns, from its root to its leaf."""
    members: dict[int, list[int]] = {}
    for index, turn in enumerate(record.turns):
        members.setdefault(turn.branch or 0, []).append(index)
    for number, branch in enumerate(record.branches):
        chain = members.get(number, [])
        links = [record.turns[index].parent for index in chain[1:]]
        ends = (chain[0], chain[-1]) if chain else None
        if ends != (branch.root, branch.leaf) or links != chain[:-1]:
            place = f"{branch.root} to {branch.leaf}"
            yield f"branch {number}: its turns {chain} are no chain from {place}"


def _of_nodes(record: ScoredTrajectory) -> Iterator[str]:
    """Each turn must have one node, whose nearest sampled one above is the turn's parent.

    A record without nodes was too large for them.
    """
    if not record.nodes:
        return
    above: list[int | None] = []
    """For each node: its turn, or else the nearest one above."""
    had: list[int] = []
    for index, node in enumerate(record.nodes):
        if node.parent is not None and not 0 <= node.parent < index:
            yield f"node {index}: node {node.parent} cannot be above it"
            return
        nearest = None if node.parent is None else above[node.parent]
        above.append(nearest if node.turn is None else node.turn)
        if node.turn is None:
            continue
        had.append(node.turn)
        if not 0 <= node.turn < len(record.turns) or node.message.role != "assistant":
            yield f"node {index}: it is no reply of turn {node.turn}"
        elif record.turns[node.turn].parent != nearest:
            yield f"turn {node.turn}: it is not below the turn that it continues"
    if sorted(had) != list(range(len(record.turns))):
        yield f"the nodes have the replies of turns {sorted(had)} of {len(record.turns)}"
