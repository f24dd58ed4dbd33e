"""Checks a record's tokens independently of the code that merged them.

For consumers who want to be sure before they train, and for tests on real servers. Two
properties cannot be checked on a single record: that encoding is lossless (tests do), and that
the server computes the same logprobs again (`hermes_queue.agent.tokens.rescore`).
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
    - The prompt and completion of each turn are in one sequence, from its first token on, in order.
    - Exactly the sampled tokens are trainable, each once, an end-of-turn token only if sampled.
    - Trainable tokens have the server's logprobs, bit for bit; all others have 0.0.
    - A turn that extends the previous one continues its sequence; any other begins a new one, with
      an event `sequence_break`, in token mode also `rerendered` with the reason.
    - Without sequences, a turn lacks ids or logprobs.
    """
    turns = [_tokens_of(turn) for turn in record.turns]
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


def _of_merge(turns: Sequence[_Tokens], sequences: Sequence[TokenSequence]) -> Iterator[str]:
    """Lay the turns over the sequences; they must cover them exactly."""
    spans: list[list[_Tokens]] = []
    for turn in turns:
        if spans and _extends(turn, spans[-1][-1]):
            spans[-1].append(turn)
        else:
            spans.append([turn])
    if len(spans) != len(sequences):
        yield f"{len(sequences)} sequences, but the turns form {len(spans)}"
        return
    for index, (span, sequence) in enumerate(zip(spans, sequences, strict=True)):
        prompt, completion, _ = span[-1]
        if sequence.ids != (*prompt, *completion):
            yield f"sequence {index}: differs from the tokens of its last turn"
        mask = [0] * len(sequence.ids)
        logprobs = [0.0] * len(sequence.ids)
        for prompt, completion, sampled in span:
            end = len(prompt) + len(completion)
            mask[len(prompt) : end] = [1] * len(completion)
            logprobs[len(prompt) : end] = sampled
        if list(sequence.loss_mask) != mask:
            yield f"sequence {index}: the trainable tokens are not exactly the sampled ones"
        if list(sequence.logprobs) != logprobs:
            yield f"sequence {index}: logprobs are not the server's"


def _extends(turn: _Tokens, last: _Tokens) -> bool:
    held = (*last[0], *last[1])
    return turn[0][: len(held)] == held


def _of_events(
    turns: Sequence[_Tokens], events: Sequence[Mapping[str, Any]], token_mode: bool
) -> Iterator[str]:
    broken = {
        index for index in range(1, len(turns)) if not _extends(turns[index], turns[index - 1])
    }
    recorded = sorted(e["turn"] for e in events if e.get("event") == "sequence_break")
    if recorded != sorted(broken):
        yield f"sequences break at turns {sorted(broken)}, but by the events at {recorded}"
    if token_mode:
        rendered = {e["turn"] for e in events if e.get("event") == "rerendered"}
        if unexplained := sorted(broken - rendered):
            yield f"token mode: sequences break at turns {unexplained} without a recorded reason"
