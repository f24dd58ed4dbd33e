"""Merges token records of turns into training sequences, by exact prefix.

Ids and logprobs are the server's own. A turn joins the open sequence only if its prompt starts
with all of that sequence's tokens; otherwise a new sequence begins and the break is reported.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hermes_queue.models import TokenSequence, Turn
from hermes_queue.wire.arrays import PackedArray, joined

BreakReason = Literal[
    "history_rewritten", "arguments_rewritten", "earlier_turns", "reply_cut_off", "reply"
]


NO_LOGPROB = -9999.0
"""The value that vLLM writes for a token without a logprob, or with one of minus infinity."""


@dataclass(frozen=True, slots=True)
class Break:
    """The place where a turn's prompt departs from the sequence before it."""

    turn: int
    """Index of the turn that could not be joined."""
    common_prefix: int
    """Number of leading tokens that both share."""
    held: int
    """Length in tokens of the sequence that ended."""


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


def merge_with_breaks(
    turns: Sequence[Turn],
) -> tuple[tuple[TokenSequence, ...], tuple[Break, ...]] | None:
    """The training sequences of a trajectory and the breaks between them, always one fewer.

    None if any turn lacks ids or logprobs. Raises ValueError if they differ in number.
    """
    if not turns:
        return None
    sequences: list[_Open] = []
    breaks: list[Break] = []
    for index, turn in enumerate(turns):
        if turn.prompt_ids is None or turn.completion_ids is None or turn.logprobs is None:
            return None
        if len(turn.completion_ids) != len(turn.logprobs):
            raise ValueError(
                f"turn {index}: {len(turn.completion_ids)} tokens, {len(turn.logprobs)} logprobs"
            )
        held = sequences[-1].ids if sequences else ()
        common = _common_prefix(held, turn.prompt_ids)
        if not sequences or common < len(held):
            if sequences:
                breaks.append(Break(index, common, len(held)))
            sequences.append(_Open())
            common = 0
        sequences[-1].add(turn.prompt_ids[common:], turn.completion_ids, turn.logprobs)
    return tuple(each.sequence() for each in sequences), tuple(breaks)


class _Open:
    """A sequence that turns may still join."""

    def __init__(self) -> None:
        self.ids: Sequence[int] = PackedArray("i", b"")
        self._mask = b""
        self._logprobs: Sequence[float] = PackedArray("f", b"")

    def add(
        self, context: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float]
    ) -> None:
        zeros: PackedArray[float] = PackedArray("f", bytes(4 * len(context)))
        self.ids = joined([self.ids, context, sampled])
        self._mask += b"\0" * len(context) + b"\1" * len(sampled)
        self._logprobs = joined([self._logprobs, zeros, logprobs])

    def sequence(self) -> TokenSequence:
        mask: PackedArray[int] = PackedArray("B", self._mask)
        return TokenSequence(ids=self.ids, loss_mask=mask, logprobs=self._logprobs)


def break_reason(
    found: Break, turns: Sequence[Turn], events: Iterable[Mapping[str, Any]]
) -> BreakReason:
    """The reason why a prompt does not extend the sequence before it.

    - `history_rewritten`: we sent another conversation (`context_rewrite`), or rendered it again in
      token mode (`rerendered`).
    - `arguments_rewritten`: we replaced a call's name, or arguments that are not a JSON object.
    - `earlier_turns`: the template now renders the part before the last reply differently.
    - `reply_cut_off`: the last reply ended at the token limit.
    - `reply`: the last reply was rendered to other tokens than were sampled.
    """
    kinds = {event.get("event") for event in events if event.get("turn") == found.turn}
    if kinds & {"context_rewrite", "rerendered"}:
        return "history_rewritten"
    if "arguments_rewritten" in kinds:
        return "arguments_rewritten"
    last = turns[found.turn - 1]
    if found.common_prefix < len(last.prompt_ids or ()):
        return "earlier_turns"
    return "reply_cut_off" if last.finish_reason == "length" else "reply"


def _common_prefix(held: Sequence[int], prompt: Sequence[int]) -> int:
    if prompt[: len(held)] == held:
        return len(held)
    pairs = enumerate(zip(held, prompt, strict=False))
    return next((n for n, (old, new) in pairs if old != new), min(len(held), len(prompt)))
