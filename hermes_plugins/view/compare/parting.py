"""Where two samples of a group part: the first token that differs, or else the first message."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from hermes_plugins.view.present.conversation import all_messages
from hermes_plugins.view.present.shapes import as_json, items, mapping
from hermes_plugins.view.present.tokens import ids_of, sequence_turns

_BLOCK = 1 << 12
_TOKEN = 4
"""Bytes of a token id."""


class SampleCourse:
    """What is compared of one sample, read once: the ids of its first sequence, or its messages."""

    def __init__(self, raw: Mapping[Any, Any]) -> None:
        self._raw = raw
        given = items(raw.get("sequences"))
        self.ids = ids_of(mapping(given[0]).get("ids")).tobytes() if given else b""
        self._hashes: list[bytes] | None = None

    def hashes(self) -> list[bytes]:
        """A hash of each message, without the ids of calls, which are drawn anew in each sample."""
        if self._hashes is None:
            self._hashes = [_hash(message) for message in all_messages(self._raw)]
        return self._hashes

    def turn_at(self, token: int) -> int | None:
        """The turn that sampled a token of the first sequence, or that follows it."""
        for turn in sequence_turns(self._raw, 0):
            if token < turn["start"] + turn["length"]:
                return turn["turn"]
        return None


def parting(reference: SampleCourse, other: SampleCourse) -> dict[str, Any]:
    """`{"by", "at", "of", "turn"}`: where `other` differs from the reference for the first time.

    `by` is `ids` (`at` is the number of a token in the first sequence) or `messages` (of a
    message). `at` is None if there is no difference; `of` is the length of the reference.
    """
    if reference.ids and other.ids:
        at = _first_difference(reference.ids, other.ids)
        token = None if at is None else at // _TOKEN
        return {
            "by": "ids",
            "at": token,
            "of": len(reference.ids) // _TOKEN,
            "turn": None if token is None else other.turn_at(token),
        }
    ours, theirs = reference.hashes(), other.hashes()
    shared = min(len(ours), len(theirs))
    end = None if len(ours) == len(theirs) else shared
    place = next((n for n in range(shared) if ours[n] != theirs[n]), end)
    return {"by": "messages", "at": place, "of": len(ours), "turn": None}


def _first_difference(first: bytes, second: bytes) -> int | None:
    """The first byte that differs, or where the shorter one ends; None if they are equal."""
    if first == second:
        return None
    shared = min(len(first), len(second))
    at = 0
    while at < shared and first[at : at + _BLOCK] == second[at : at + _BLOCK]:
        at += _BLOCK
    while at < shared and first[at] == second[at]:
        at += 1
    return min(at, shared)


def _hash(message: object) -> bytes:
    known = mapping(message)
    made = hashlib.blake2b(digest_size=16)
    for name in ("role", "content", "reasoning"):
        _add(made, known.get(name))
    for call in items(known.get("tool_calls")):
        function = mapping(mapping(call).get("function"))
        _add(made, function.get("name"))
        _add(made, function.get("arguments"))
    return made.digest()


def _add(made: Any, value: object) -> None:
    text = value if isinstance(value, str) else "" if value is None else as_json(value)
    data = text.encode(errors="surrogatepass")
    made.update(b"%d:" % len(data))
    made.update(data)
