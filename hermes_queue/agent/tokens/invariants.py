"""Checks a record's tokens independently of the code that merged them.

It checks which turn continues which, and what nodes and branches say of it. For consumers who want
to be sure before they train, and for tests on real servers. Two properties cannot be checked on a
single record: that encoding is lossless (tests do), and that the server computes the same logprobs
again (`hermes_queue.agent.tokens.rescore`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_queue.models import ScoredTrajectory, TokenSequence, Turn

_Tokens = tuple[Sequence[int], Sequence[int], Sequence[float]]
"""Prompt ids, completion ids and logprobs of a turn that has all three."""


def token_violations(record: ScoredTrajectory) -> list[str]:
    """Violations of the guarantees that trainers rely on; [] if there are none.

    - Ids, mask and logprobs of a sequence have the same length; the mask is 0 or 1; ids are not
      negative; logprobs are finite, at most 0, and float32.
    - The prompt and completion of each turn are in a sequence, from its first token on, in order.
      Replies that a program never got are in none.
    - Exactly the sampled tokens are trainable, each once: in the first sequence that holds its
      turn. An end-of-turn token is trainable only if sampled.
    - Trainable tokens have the server's logprobs, bit for bit; all others have 0.0.
    - A turn that extends the turn which it continues is in its sequence; any other begins a new
      one, with an event `sequence_break`, in token mode also `rerendered` with the reason. In our
      own loop a turn continues the one before it, with a program the one that the record names.
    - Sequences are the paths from those beginnings to the turns that nothing extends.
    - Turns, branches and nodes of a program agree on what continues what.
    - Without sequences, a turn lacks ids or logprobs.
    """
    if astray := _tree_violations(record):
        return astray
    turns = [_tokens_of(turn) for turn in record.turns]
    if record.sequences is None:
        complete = bool(turns) and None not in turns
        return ["sequences are missing, though every turn has ids and logprobs"] if complete else []
    if not turns or None in turns:
        return ["there are sequences, though a turn has no ids or logprobs"]
    known = [turn for turn in turns if turn is not None]
    joins = _joins(record, known)
    broken = {turn for turn, joined in joins.items() if not joined}
    return [
        *_in_turns(known),
        *_in_sequences(record.sequences),
        *_of_merge(record, known, joins),
        *_of_events(record.events, broken, record.agent.params.get("mode") == "tokens"),
    ]


def _tokens_of(turn: Turn) -> _Tokens | None:
    if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
        return None
    return turn.prompt_ids, turn.completion_ids, turn.logprobs


def _in_turns(turns: Sequence[_Tokens]) -> Iterator[str]:
    for index, (prompt, completion, logprobs) in enumerate(turns):
        if len(completion) != len(logprobs):
            yield f"turn {index}: {len(completion)} tokens, {len(logprobs)} logprobs"
        if any(token < 0 for token in (*prompt, *completion)):
            yield f"turn {index}: a token id is negative"
        if not all(math.isfinite(value) and value <= 0 for value in logprobs):
            yield f"turn {index}: a logprob is not finite, or above 0"
        elif array("f", logprobs).tolist() != list(logprobs):
            yield f"turn {index}: a logprob is not a float32"


def _in_sequences(sequences: Sequence[TokenSequence]) -> Iterator[str]:
    for index, sequence in enumerate(sequences):
        lengths = {len(sequence.ids), len(sequence.loss_mask), len(sequence.logprobs)}
        if len(lengths) > 1:
            yield f"sequence {index}: ids, mask and logprobs differ in length"
        if not set(sequence.loss_mask) <= {0, 1}:
            yield f"sequence {index}: the mask has values other than 0 and 1"
        context = zip(sequence.logprobs, sequence.loss_mask, strict=False)
        if any(value != 0 for value, mask in context if not mask):
            yield f"sequence {index}: a token that was not sampled has a logprob"


def _joins(record: ScoredTrajectory, turns: Sequence[_Tokens]) -> dict[int, bool]:
    """For each delivered turn that continues another: whether it extends all of its tokens."""
    above = _continued(record)
    return {
        index: _extends(turns[index], turns[parent])
        for index, parent in enumerate(above)
        if parent is not None and _is_delivered(record.turns[index])
    }


def _of_merge(
    record: ScoredTrajectory, turns: Sequence[_Tokens], joins: Mapping[int, bool]
) -> Iterator[str]:
    """Lay the turns over the sequences; they must cover them exactly."""
    sequences, expected = record.sequences or (), sorted(_paths(record, joins))
    paths = [sequence.turns for sequence in sequences]
    if record.schema_version == 1:
        paths = list(expected)
    if len(expected) != len(sequences):
        yield f"{len(sequences)} sequences, but the turns form {len(expected)}"
        return
    if sorted(paths) != expected:
        yield f"the sequences have the turns {sorted(paths)}, by their prompts {expected}"
        return
    seen: set[int] = set()
    for index, (path, sequence) in enumerate(zip(paths, sequences, strict=True)):
        yield from (f"sequence {index}: {each}" for each in _in_path(sequence, path, turns, seen))
        branch = record.turns[path[-1]].branch
        if branch is not None and sequence.branch != record.branches[branch].label:
            yield f"sequence {index}: its branch is not {sequence.branch}"


def _in_path(
    sequence: TokenSequence, path: Sequence[int], turns: Sequence[_Tokens], seen: set[int]
) -> Iterator[str]:
    """Compare a sequence with its turns; those in `seen` are trainable in an earlier one."""
    prompt, completion, _ = turns[path[-1]]
    if sequence.ids != (*prompt, *completion):
        yield "differs from the tokens of its last turn"
    mask = [0] * len(sequence.ids)
    logprobs = [0.0] * len(sequence.ids)
    for turn in path:
        prompt, completion, sampled = turns[turn]
        end = len(prompt) + len(completion)
        if turn not in seen:
            mask[len(prompt) : end] = [1] * len(completion)
            logprobs[len(prompt) : end] = sampled
    seen.update(path)
    if list(sequence.loss_mask) != mask:
        yield "the trainable tokens are not exactly the sampled ones"
    if list(sequence.logprobs) != logprobs:
        yield "logprobs are not the server's"


def _paths(record: ScoredTrajectory, joins: Mapping[int, bool]) -> list[tuple[int, ...]]:
    """The turns of each sequence, from the turns that nothing extends back to a beginning."""
    above = _continued(record)
    extended = {above[turn] for turn, joined in joins.items() if joined}
    paths: list[tuple[int, ...]] = []
    for turn, each in enumerate(record.turns):
        if turn in extended or not _is_delivered(each):
            continue
        path: list[int] = []
        at: int | None = turn
        while at is not None:
            path.append(at)
            at = above[at] if joins.get(at) else None
        paths.append(tuple(path[::-1]))
    return paths


def _extends(turn: _Tokens, last: _Tokens) -> bool:
    begun, sampled = len(last[0]), len(last[0]) + len(last[1])
    return turn[0][:begun] == last[0] and turn[0][begun:sampled] == last[1]


def _of_events(
    events: Sequence[Mapping[str, Any]], broken: set[int], token_mode: bool
) -> Iterator[str]:
    recorded = sorted(e["turn"] for e in events if e.get("event") == "sequence_break")
    if recorded != sorted(broken):
        yield f"sequences break at turns {sorted(broken)}, but by the events at {recorded}"
    if token_mode:
        rendered = {e["turn"] for e in events if e.get("event") == "rerendered"}
        if unexplained := sorted(broken - rendered):
            yield f"token mode: sequences break at turns {unexplained} without a recorded reason"


def _continued(record: ScoredTrajectory) -> list[int | None]:
    """For each turn of the record: the turn whose reply it continues, None if there is none."""
    if record.schema_version == 1:
        return [index - 1 if index else None for index in range(len(record.turns))]
    return [turn.parent for turn in record.turns]


def _is_delivered(turn: Turn) -> bool:
    """Whether the program got the reply; in our own loop always."""
    return turn.call is None or turn.call.status == "delivered"


def _tree_violations(record: ScoredTrajectory) -> list[str]:
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
        elif not _is_delivered(record.turns[turn.parent]):
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
