"""Groups of a step, split over the ranks of a trainer."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_queue.trainers.rows import Row


def split(groups: Sequence[Sequence[Row]], rank: int, world: int) -> list[Sequence[Row]]:
    """The groups that are for `rank`, in their order.

    Every rank gets the same number of whole groups, and about as many tokens as the others: the
    longest group goes first, to the rank with the fewest tokens so far. The same groups give the
    same result in every process.

    Args:
        groups: of the whole step, the same in every rank; each is what `rows_of` made of it.
        rank: of this process, from 0 on.
        world: number of ranks.

    Raises:
        ValueError: the groups cannot be shared equally, or there is no such rank.
    """
    if not 0 <= rank < world:
        raise ValueError(f"rank {rank} of {world}")
    if len(groups) % world:
        raise ValueError(
            f"{len(groups)} groups cannot be shared equally by {world} ranks: take a multiple"
        )
    tokens = [sum(len(row.ids) for row in group) for group in groups]
    loads = [0] * world
    parts: list[list[int]] = [[] for _ in range(world)]
    for place in sorted(range(len(groups)), key=lambda place: (-tokens[place], place)):
        room = [each for each in range(world) if len(parts[each]) < len(groups) // world]
        lightest = min(room, key=lambda each: (loads[each], each))
        parts[lightest].append(place)
        loads[lightest] += tokens[place]
    return [groups[place] for place in sorted(parts[rank])]
