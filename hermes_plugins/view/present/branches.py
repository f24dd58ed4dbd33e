"""The other conversations of a program: sub-agents, compactions, titles and the like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from hermes_plugins.view.present.shapes import items, mapping, whole
from hermes_queue.terminal.escapes import label

BRANCHES_MOST = 500


class ShownBranch(TypedDict):
    """A conversation in a list of all."""

    n: int
    label: str
    """main, sub_agent, compaction or side."""
    turns: int
    messages: int


def branches(raw: Mapping[Any, Any]) -> list[ShownBranch]:
    """All conversations of a program; [] for a record without them."""
    given = items(raw.get("branches"))[:BRANCHES_MOST]
    turns = Counter(whole(mapping(turn).get("branch")) for turn in items(raw.get("turns")))
    paths = _Paths(raw)
    return [
        {
            "n": n,
            "label": label(mapping(each).get("label")),
            "turns": turns[n],
            "messages": paths.length(mapping(each)),
        }
        for n, each in enumerate(given)
    ]


def of_branch(raw: Mapping[Any, Any], n: int) -> dict[str, Any] | None:
    """The record with conversation `n` as its messages, for `messages`, `message` and `outline`.

    None if there is no such conversation.
    """
    given = items(raw.get("branches"))
    if not 0 <= n < len(given):
        return None
    nodes = items(raw.get("nodes"))
    path = [mapping(nodes[place]) for place in _Paths(raw).of(mapping(given[n]))]
    linear = [{**node, "parent": place - 1 if place else None} for place, node in enumerate(path)]
    return {**raw, "messages": [node.get("message") for node in path], "nodes": linear}


class _Paths:
    """The tree of a program's messages."""

    def __init__(self, raw: Mapping[Any, Any]) -> None:
        self._nodes: Sequence[Any] = items(raw.get("nodes"))
        self._of_turn: dict[int, int] = {}
        self._depths: list[int] = []
        self._lengths: dict[int, int] = {}
        self._answers: dict[int, list[int]] = {}
        """Of each node, the nodes below it that no turn sampled."""
        for place, node in enumerate(self._nodes):
            known = mapping(node)
            turn, parent = whole(known.get("turn")), whole(known.get("parent"))
            is_below = parent is not None and 0 <= parent < place
            self._depths.append(self._depths[parent] + 1 if parent is not None and is_below else 1)
            if turn is not None:
                self._of_turn.setdefault(turn, place)
            elif parent is not None and parent < place:
                self._answers.setdefault(parent, []).append(place)

    def length(self, branch: Mapping[Any, Any]) -> int:
        """The number of nodes of a conversation."""
        at = self._last(branch)
        if at is None:
            return 0
        if at not in self._lengths:
            self._lengths[at] = self._depths[at] + len(self._behind(at))
        return self._lengths[at]

    def of(self, branch: Mapping[Any, Any]) -> list[int]:
        """The nodes of a conversation: those above its last reply, it, and what answers it."""
        at = self._last(branch)
        if at is None:
            return []
        path = [at]
        while (above := whole(mapping(self._nodes[path[-1]]).get("parent"))) is not None:
            if not 0 <= above < path[-1]:
                break
            path.append(above)
        path.reverse()
        return path + self._behind(path[-1])

    def _last(self, branch: Mapping[Any, Any]) -> int | None:
        leaf = whole(branch.get("leaf"))
        return None if leaf is None else self._of_turn.get(leaf)

    def _behind(self, place: int) -> list[int]:
        found: list[int] = []
        while len(below := self._answers.get(place, [])) == 1:
            found += below
            place = below[0]
        return found
