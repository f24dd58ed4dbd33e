"""Entries of a turn journal: msgpack with packed arrays, zstd, as records have them.

A turn's prompt repeats the conversation; an entry has only what is new in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgpack
import zstandard
from pydantic import Field

from hermes_queue.bodies.codec import TURN_ARRAYS, packed_arrays, unpacked_array
from hermes_queue.models import Message, ToolCallCounts, Turn, Usage, Wire
from hermes_queue.wire.arrays import PackedArray, joined

MAX_ENTRY_BYTES = 16 << 20
"""Largest unpacked size of an entry; one that declares more is refused unread."""


class JournalStep(Wire):
    """One turn and what followed it, up to the next model call."""

    version: Literal[1] = 1
    kind: Literal["step"] = "step"
    epoch: int = Field(ge=1)
    """Of the lease under which it was made."""
    turn: int = Field(ge=0)
    """Number of the turn."""
    basis: str = Field(pattern="^[0-9a-f]{64}$")
    """Hash of what must be unchanged for the agent to continue: prompt, tools, model, env."""
    host: str = ""
    messages: tuple[Message, ...]
    """The reply and the answers to its calls."""
    record: Turn
    """The turn, without the first `shared` ids of its prompt."""
    shared: int = Field(default=0, ge=0)
    """Leading ids of its prompt that are those of the previous turn's prompt and completion."""
    events: tuple[dict[str, Any], ...] = ()
    """Events since the previous step."""
    tool_calls: ToolCallCounts = ToolCallCounts()
    """Counters of the whole trajectory so far, as all that follow."""
    format_errors: int = Field(default=0, ge=0)
    repeats: int = Field(default=0, ge=0)
    waited_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    agent_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds of the agent, without `waited_s`."""
    used_s: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    """Seconds of the total deadline, of all attempts."""
    ended_by_token: bool | None = None
    """See `Anchor`; None if the reply has none."""
    chat: dict[str, Any] = Field(default_factory=dict)
    """State of the chat client."""
    lost: Usage = Usage()
    """Tokens of turns of earlier workers that are in the journal no longer, but are to be paid."""
    policy_begun: int | None = None


class JournalMark(Wire):
    """The slot's files after a turn were copied."""

    version: Literal[1] = 1
    kind: Literal["mark"] = "mark"
    epoch: int = Field(ge=1)
    turns: int = Field(ge=1)
    """Number of turns before the copy."""
    snapshot_id: str = Field(pattern="^[A-Za-z0-9-]{1,200}$")


class JournalPaid(Wire):
    """Replies of which nothing can be continued, but which were paid for: those to a program."""

    version: Literal[1] = 1
    kind: Literal["paid"] = "paid"
    epoch: int = Field(ge=1)
    turns: int = Field(ge=1)
    """Number of replies under this lease."""
    usage: Usage
    """Their tokens."""


JournalEntry = JournalStep | JournalMark | JournalPaid
_BY_KIND: dict[Any, type[JournalEntry]] = {
    "step": JournalStep,
    "mark": JournalMark,
    "paid": JournalPaid,
}


def without_known_ids(turn: Turn, previous: Turn | None) -> tuple[Turn, int]:
    """The turn without the leading ids of its prompt that the previous one has, and their number.

    Inverse: `with_known_ids`.
    """
    known = _ids(previous)
    if turn.prompt_ids is None or known is None:
        return turn, 0
    prompt = turn.prompt_ids
    shared = len(known) if prompt[: len(known)] == known else 0
    if shared == 0:
        pairs = enumerate(zip(known, prompt, strict=False))
        shared = next((n for n, (old, new) in pairs if old != new), min(len(known), len(prompt)))
    return turn.model_copy(update={"prompt_ids": prompt[shared:]}), shared


def with_known_ids(turn: Turn, shared: int, previous: Turn | None) -> Turn:
    """The whole turn. Raises ValueError: the previous turn has fewer ids."""
    known = _ids(previous) or ()
    if shared == 0:
        return turn
    if turn.prompt_ids is None or shared > len(known):
        raise ValueError(f"{shared} ids of a prompt are not there")
    return turn.model_copy(update={"prompt_ids": joined([known[:shared], turn.prompt_ids])})


def _ids(turn: Turn | None) -> Sequence[int] | None:
    """The ids of a conversation up to the end of this turn's reply."""
    if turn is None or turn.prompt_ids is None or turn.completion_ids is None:
        return None
    return joined([_packed_ids(turn.prompt_ids), _packed_ids(turn.completion_ids)])


def _packed_ids(ids: Sequence[int]) -> Sequence[int]:
    """The ids in the form in which a record has them, which is compared fast."""
    return ids if isinstance(ids, PackedArray) else tuple(ids)


def encode_entry(entry: JournalEntry) -> bytes:
    """Encode an entry.

    Raises:
        OverflowError: a token id does not fit int32.
        ValueError: it is larger than readers accept.
    """
    arrays: Any = {"record": set(TURN_ARRAYS)} if isinstance(entry, JournalStep) else None
    data = entry.model_dump(mode="python", exclude_defaults=True, exclude=arrays)
    data |= {"version": entry.version, "kind": entry.kind}
    if isinstance(entry, JournalStep):
        data.setdefault("record", {}).update(packed_arrays(entry.record, TURN_ARRAYS))
    packed: bytes = msgpack.packb(data, use_bin_type=True)
    if len(packed) > MAX_ENTRY_BYTES:
        raise ValueError(f"an entry of {len(packed)} bytes, readers take {MAX_ENTRY_BYTES}")
    return zstandard.ZstdCompressor(level=3).compress(packed)


def decode_entry(body: bytes) -> JournalEntry:
    """Decode an entry. Raises ValueError: it is damaged or of another version."""
    try:
        size = zstandard.frame_content_size(body)
        if not 0 <= size <= MAX_ENTRY_BYTES:
            raise ValueError(f"it unpacks to {size} bytes")
        raw = zstandard.ZstdDecompressor().decompress(body)
        data = msgpack.unpackb(raw, ext_hook=unpacked_array, strict_map_key=True)
        if not isinstance(data, dict) or data.get("version") != 1:
            raise ValueError("it is of another version")
        entry = _BY_KIND.get(data.get("kind"), JournalMark).model_validate(data)
        if isinstance(entry, JournalStep):
            _refuse_arrays([entry.events, entry.chat, entry.record.sampling])
        return entry
    except (zstandard.ZstdError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise ValueError(f"not an entry: {error}") from error


def _refuse_arrays(value: Any) -> None:
    """Fields of any type would take an array, which those who read them do not expect."""
    if isinstance(value, PackedArray):
        raise ValueError("an array outside the fields for tokens")
    if isinstance(value, dict | list | tuple):
        for each in value.values() if isinstance(value, dict) else value:
            _refuse_arrays(each)
