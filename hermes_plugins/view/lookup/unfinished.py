"""What the ledger knows of a trajectory without a record: its state, attempts, turns, letters."""

from __future__ import annotations

import time
from typing import Any

from hermes_plugins.view.lookup.base import LookedUp, Raw
from hermes_queue.bodies import codec
from hermes_queue.bodies.steps import JournalStep, decode_entry
from hermes_queue.errors import SchemaTooNew
from hermes_queue.ledger import DeadLetters, Ledger
from hermes_queue.ledger.attempts import unpacked
from hermes_queue.ledger.fleet.journal import read_journal

_ENTRIES_MOST = 10_000
_JOURNAL_BYTES = 64 << 20
_LOG_LINES = 15
_LETTERS_MOST = 5


def unfinished(ledger: Ledger, name: str, notes: list[str]) -> LookedUp | None:
    """The trajectory as a record of what there is, or its dead letters; None if nothing is known.

    Its messages are those of the turns in its journal: what came before them is in no place that
    all may read.
    """
    client: Any = ledger.client
    given: dict[bytes, bytes] = client.hgetall(ledger.key(f"traj:{name}"))
    facts = {key.decode(errors="replace"): value for key, value in given.items()}
    letters = letters_of(ledger, name)
    where = "the ledger" if facts else "the dead letters"
    if not facts and not letters:
        return None
    text = {key: value.decode(errors="replace") for key, value in facts.items()}
    raw: Raw = {"trajectory_id": name, **_job(text.get("job", ""), name)}
    raw["attempt"] = _whole(text.get("attempt", ""))
    lines = facts.get("attempts", b"").splitlines()
    raw["attempts"] = [each.model_dump(exclude_defaults=True) for each in unpacked(lines)]
    turns = turns_of(ledger, name) if text.get("state") == "running" else []
    raw["messages"] = [
        message.model_dump(exclude_defaults=True) for turn in turns for message in turn.messages
    ]
    raw["turns"] = [turn.record.model_dump(exclude_defaults=True) for turn in turns]
    raw["events"] = [event for turn in turns for event in turn.events]
    known = _described(text) if facts else ["the job is not in the ledger any more"]
    state = text.get("state") or "a dead letter"
    return LookedUp([raw], False, where, [*notes, *known, *letters], state)


def letters_of(ledger: Ledger, name: str) -> list[str]:
    """The dead letters about a trajectory, newest first, a text each."""
    found = [
        each for each in DeadLetters(ledger).find() if each.fields.get("trajectory_id") == name
    ]
    notes = []
    for letter in reversed(found[-_LETTERS_MOST:]):
        fields = letter.fields
        lines = [f"dead letter {letter.id}, {fields.get('cause', '')}: {fields.get('reason', '')}"]
        lines += [f"  worker died: {line}" for line in fields.get("died", "").splitlines()]
        log = fields.get("log", "").splitlines()
        lines += [f"  log: {line}" for line in log[-_LOG_LINES:]]
        notes.append("\n".join(lines))
    return notes


def _described(text: dict[str, str]) -> list[str]:
    """What the ledger says of a job, in a line."""
    parts = [text.get("state", "")]
    if text.get("state") == "running":
        parts += [f"stage {text.get('stage', '?')}", f"worker {text.get('owner', '?')}"]
        if (begun := _number(text.get("begun", ""))) is not None:
            parts.append(f"since {max(0.0, time.time() - begun):.0f} s")
    elif text.get("state") == "queued" and (queued := _number(text.get("queued", ""))) is not None:
        parts.append(f"since {max(0.0, time.time() - queued):.0f} s")
    parts += [f"attempt {text.get('attempt', '?')}", f"lane {text.get('lane', '?')}"]
    lines = [", ".join(parts)]
    if text.get("state") == "final":
        lines.append("its record is not in Redis any more: look in the archive")
    return lines + [f"worker died: {line}" for line in text.get("died", "").splitlines()]


def _job(text: str, name: str) -> Raw:
    """Fields of the job that a record has, too."""
    try:
        job = codec.decode_job(text, name)
    except (ValueError, SchemaTooNew):
        return {}
    fields = {"run_id", "group_id", "sample_index", "group_size", "env", "instance_id", "agent"}
    return job.model_dump(mode="json", include={*fields, "policy_version", "requeued_from"})


def turns_of(ledger: Ledger, name: str) -> list[JournalStep]:
    """The turns in the journal of a running trajectory; [] if there is none that can be read."""
    try:
        entries = read_journal(ledger, name, most=_ENTRIES_MOST, most_bytes=_JOURNAL_BYTES)
        decoded = [decode_entry(entry) for entry in entries]
    except ValueError:  # somebody else's, or of another version
        return []
    return [entry for entry in decoded if isinstance(entry, JournalStep)]


def _whole(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
