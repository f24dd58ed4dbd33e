"""Merges token records of turns into training sequences, by exact prefix.

Ids and logprobs are the server's own. A turn joins the sequence of the turn that it continues only
if its prompt starts with all of that one's tokens; otherwise a new sequence begins and the break is
reported. In our own loop each turn continues the one before it: a tree of one path.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from hermes_queue.models import Branch, TokenSequence, Turn
from hermes_queue.wire.arrays import PackedArray, joined

BreakReason = Literal[
    "history_rewritten", "arguments_rewritten", "earlier_turns", "reply_cut_off", "reply"
]


NO_LOGPROB = -9999.0
"""The value that vLLM writes for a token without a logprob, or with one of minus infinity."""


@dataclass(frozen=True, slots=True)
class Break:
    """The place where a turn's prompt departs from the tokens of the turn that it continues."""

    turn: int
    """Index of the turn that could not be joined."""
    common_prefix: int
    """Number of leading tokens that both share."""
    held: int
    """Number of tokens of the turn that it continues, prompt and completion."""


def round_float32(values: Iterable[float]) -> PackedArray[float]:
    """Logprobs rounded to float32. Done once, at capture; they stay bit-exact from then on.

    Raises ValueError if one is not finite, above 0, or marks a missing one.
    """
    rounded = array("f", values)
    if not all(map(math.isfinite, rounded)):
        raise ValueError("a logprob is not a finite float32")
    if any(value > 0 for value in rounded):
        raise ValueError("a logprob is above 0: does the server return logits?")
    if NO_LOGPROB in rounded:
        raise ValueError(f"a logprob is {NO_LOGPROB}, which marks a missing one")
    return PackedArray("f", rounded.tobytes())


def parents(turns: Sequence[Turn]) -> list[int | None]:
    """For each turn, the one whose reply it continues.

    Programs say so; in our own loop it is the turn before.
    """
    return [
        turn.parent if turn.branch is not None else index - 1 if index else None
        for index, turn in enumerate(turns)
    ]


def is_delivered(turn: Turn) -> bool:
    """Whether the reply reached whoever asked for it; any other is no part of what an agent did."""
    return turn.call is None or turn.call.status == "delivered"


def merge_with_breaks(
    turns: Sequence[Turn], branches: Sequence[Branch] = ()
) -> tuple[tuple[TokenSequence, ...], tuple[Break, ...]] | None:
    """The training sequences of a trajectory, and the turns that could not join their parent's.

    Delivered turns form trees, in which a turn is below its parent if its prompt begins with all of
    the parent's tokens. There is one sequence for each path from a root to a leaf. A turn that
    several paths share is trainable in the first of them, the one that goes on longest.

    None if any turn lacks ids or logprobs. Raises ValueError if they differ in number.
    """
    if not turns:
        return None
    for index, turn in enumerate(turns):
        if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
            return None
        if len(turn.completion_ids) != len(turn.logprobs):
            raise ValueError(
                f"turn {index}: {len(turn.completion_ids)} tokens, {len(turn.logprobs)} logprobs"
            )
    roots: list[int] = []
    below: dict[int, list[int]] = {}
    breaks: list[Break] = []
    for index, (turn, parent) in enumerate(zip(turns, parents(turns), strict=True)):
        if not is_delivered(turn):
            continue
        found = None if parent is None else _joint(turns[parent], turn, index)
        if parent is None or found is not None or not is_delivered(turns[parent]):
            roots.append(index)
        else:
            below.setdefault(parent, []).append(index)
        breaks += [found] if found else []
    seen: set[int] = set()
    sequences = [_sequence(turns, path, seen, branches) for path in _paths(roots, below)]
    return tuple(sequences), tuple(breaks)


def _joint(parent: Turn, turn: Turn, index: int) -> Break | None:
    """None if the turn's prompt begins with all of the parent's tokens."""
    begun, sampled = parent.prompt_ids or (), parent.completion_ids or ()
    prompt, held = turn.prompt_ids or (), len(begun) + len(sampled)
    common = _common_prefix(begun, prompt)
    if common == len(begun):
        common += _common_prefix(sampled, prompt[common:held])
    return Break(index, common, held) if common < held else None


def _paths(roots: Iterable[int], below: Mapping[int, Sequence[int]]) -> Iterator[list[int]]:
    """The paths to all leaves; of turns below the same one, first the one that went on longest."""
    last: dict[int, int] = {}
    for parent in sorted(below, reverse=True):  # a turn comes after its parent
        last[parent] = max(last.get(child, child) for child in below[parent])
    waiting = [[root] for root in sorted(roots, reverse=True)]
    while waiting:
        path = waiting.pop()
        while len(children := below.get(path[-1], ())) == 1:
            path.append(children[0])
        if not children:
            yield path
        ordered = sorted(children, key=lambda child: last.get(child, child))
        waiting += [[*path, child] for child in ordered]


def _sequence(
    turns: Sequence[Turn], path: Sequence[int], seen: set[int], branches: Sequence[Branch]
) -> TokenSequence:
    """The tokens of the last turn of `path`; what is in `seen` is context."""
    mask = bytearray()
    logprobs: list[Sequence[float]] = []
    for index in path:
        turn = turns[index]
        context, sampled = len(turn.prompt_ids or ()) - len(mask), len(turn.completion_ids or ())
        fresh = index not in seen
        mask += b"\0" * context + (b"\1" if fresh else b"\0") * sampled
        logprobs.append(PackedArray("f", bytes(4 * context)))
        logprobs.append((turn.logprobs or ()) if fresh else PackedArray("f", bytes(4 * sampled)))
    seen.update(path)
    last = turns[path[-1]]
    made = TokenSequence(
        ids=joined([last.prompt_ids or (), last.completion_ids or ()]),
        loss_mask=PackedArray[int]("B", bytes(mask)),
        logprobs=joined(logprobs),
    )
    if last.branch is None:
        return made
    label = branches[last.branch].label
    return made.model_copy(update={"turns": tuple(path), "branch": label})


def break_events(
    breaks: Iterable[Break], turns: Sequence[Turn], events: Iterable[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """The events `sequence_break` of a record with these turns and events, each with its reason.

    - `history_rewritten`: another conversation was sent (`context_rewrite`), or it was rendered
      again in token mode or because a program changed it (`rerendered`).
    - `arguments_rewritten`: we replaced a call's name, or arguments that are not a JSON object.
    - `earlier_turns`: the template now renders the part before the last reply differently.
    - `reply_cut_off`: the last reply ended at the token limit.
    - `reply`: the last reply was rendered to other tokens than were sampled.
    """
    kinds: dict[object, set[object]] = {}
    for event in events:
        kinds.setdefault(event.get("turn"), set()).add(event.get("event"))
    above = parents(turns)
    return [
        {"event": "sequence_break", **asdict(found)}
        | {"reason": _reason(found, turns[above[found.turn] or 0], kinds.get(found.turn, set()))}
        for found in breaks
    ]


def _reason(found: Break, last: Turn, kinds: Collection[object]) -> BreakReason:
    if "context_rewrite" in kinds or "rerendered" in kinds:
        return "history_rewritten"
    if "arguments_rewritten" in kinds:
        return "arguments_rewritten"
    if found.common_prefix < len(last.prompt_ids or ()):
        return "earlier_turns"
    return "reply_cut_off" if last.finish_reason == "length" else "reply"


def _common_prefix(held: Sequence[int], prompt: Sequence[int]) -> int:
    if prompt[: len(held)] == held:
        return len(held)
    pairs = enumerate(zip(held, prompt, strict=False))
    return next((n for n, (old, new) in pairs if old != new), min(len(held), len(prompt)))
