"""What must hold of the tokens of a record, checked without the code that merged them.

For consumers who want to be sure before they train, and for tests on real servers. What cannot be
seen in one record alone is elsewhere: that encoding keeps every bit (tests), and that the server
finds the same logprobs again (`hermes_queue.agent.tokens.rescore`).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_queue.models import ScoredTrajectory, TokenSequence, Turn

_Whole = tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]
"""Prompt ids, completion ids and logprobs of a turn that has them all."""


def token_violations(record: ScoredTrajectory) -> list[str]:
    """Each way in which the record's tokens are not what a trainer may rely on; [] = none.

    - Ids, mask and logprobs of a sequence are equally long; the mask is 0 or 1; ids are not
      negative; logprobs are finite, at most 0, and float32.
    - Each turn's prompt and completion stand in one sequence, from its first token on, in order.
    - Exactly what was sampled is trainable, once: an end of turn that the policy sampled is, one
      that was put there afterwards is not.
    - Trainable tokens have the server's logprobs, bit for bit; all others have 0.0.
    - A turn that extends the last one continues its sequence; any other begins one, and an event
      `sequence_break` says so. In token mode that is so only where an event `rerendered` says why.

    A record without sequences is in order when a turn has no ids or no logprobs.
    """
    turns = [_whole(turn) for turn in record.turns]
    if record.sequences is None:
        complete = bool(turns) and None not in turns
        return ["sequences are missing, though every turn has ids and logprobs"] if complete else []
    if not turns or None in turns:
        return ["there are sequences, though a turn has no ids or logprobs"]
    known = [turn for turn in turns if turn is not None]
    return [
        *_in_turns(known),
        *_in_sequences(record.sequences),
        *_of_merge(known, record.sequences),
        *_of_events(known, record.events, record.agent.params.get("mode") == "tokens"),
    ]


def _whole(turn: Turn) -> _Whole | None:
    if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
        return None
    return turn.prompt_ids, turn.completion_ids, turn.logprobs


def _in_turns(turns: Sequence[_Whole]) -> Iterator[str]:
    for index, (prompt, completion, logprobs) in enumerate(turns):
        if len(completion) != len(logprobs):
            yield f"turn {index}: {len(completion)} tokens, {len(logprobs)} logprobs"
        if any(token < 0 for token in (*prompt, *completion)):
            yield f"turn {index}: a token id is negative"
        if not all(math.isfinite(value) and value <= 0 for value in logprobs):
            yield f"turn {index}: a logprob is not finite, or above 0"
        elif array("f", logprobs).tolist() != list(logprobs):
            yield f"turn {index}: a logprob is no float32"


def _in_sequences(sequences: Sequence[TokenSequence]) -> Iterator[str]:
    for index, sequence in enumerate(sequences):
        lengths = {len(sequence.ids), len(sequence.loss_mask), len(sequence.logprobs)}
        if len(lengths) > 1:
            yield f"sequence {index}: ids, mask and logprobs differ in length"
        if not set(sequence.loss_mask) <= {0, 1}:
            yield f"sequence {index}: the mask is neither 0 nor 1"
        context = zip(sequence.logprobs, sequence.loss_mask, strict=False)
        if any(value != 0 for value, mask in context if not mask):
            yield f"sequence {index}: a token that was not sampled has a logprob"


def _of_merge(turns: Sequence[_Whole], sequences: Sequence[TokenSequence]) -> Iterator[str]:
    """Lay the turns over the sequences, which they must cover exactly."""
    spans: list[list[_Whole]] = []
    for turn in turns:
        if spans and _extends(turn, spans[-1][-1]):
            spans[-1].append(turn)
        else:
            spans.append([turn])
    if len(spans) != len(sequences):
        yield f"{len(sequences)} sequences, but the turns make {len(spans)}"
        return
    for index, (span, sequence) in enumerate(zip(spans, sequences, strict=True)):
        prompt, completion, _ = span[-1]
        if sequence.ids != (*prompt, *completion):
            yield f"sequence {index}: not the tokens of its last turn"
        mask = [0] * len(sequence.ids)
        logprobs = [0.0] * len(sequence.ids)
        for prompt, completion, sampled in span:
            end = len(prompt) + len(completion)
            mask[len(prompt) : end] = [1] * len(completion)
            logprobs[len(prompt) : end] = sampled
        if list(sequence.loss_mask) != mask:
            yield f"sequence {index}: trainable is not exactly what was sampled"
        if list(sequence.logprobs) != logprobs:
            yield f"sequence {index}: logprobs are not the server's"


def _extends(turn: _Whole, last: _Whole) -> bool:
    held = (*last[0], *last[1])
    return turn[0][: len(held)] == held


def _of_events(
    turns: Sequence[_Whole], events: Sequence[Mapping[str, Any]], token_mode: bool
) -> Iterator[str]:
    broken = {
        index for index in range(1, len(turns)) if not _extends(turns[index], turns[index - 1])
    }
    told = sorted(e["turn"] for e in events if e.get("event") == "sequence_break")
    if told != sorted(broken):
        yield f"sequences break at turns {sorted(broken)}, the events say {told}"
    if token_mode:
        rendered = {e["turn"] for e in events if e.get("event") == "rerendered"}
        if unexplained := sorted(broken - rendered):
            yield f"token mode: sequences break at turns {unexplained} and nothing says why"
