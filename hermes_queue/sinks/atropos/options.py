"""What the Atropos sink is asked to do, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from hermes_queue.sinks.atropos.members import MissingPolicy
from hermes_queue.sinks.atropos.wire import SequencePolicy


@dataclass(frozen=True, slots=True)
class AtroposOptions:
    """What to send where, and how."""

    url: str
    """Of the Atropos API server."""
    name: str = "hermes-queue"
    """Of the environment, as the trainer shows it."""
    group: str = "atropos"
    """Consumer group of the results stream; one sink process at a time serves it."""
    redis_url: str | None = None
    run_id: str | None = None
    env: str | None = None
    start: str | float = "0"
    group_size: int | None = None
    """Sequences per group; None: that of the first group."""
    sequences: SequencePolicy = "longest"
    on_missing: MissingPolicy = "drop"
    missing_wait_s: float = 3600.0
    """How long `wait` waits, from when the group was finished."""
    messages: bool = False
    """Whether the conversation is sent beside the tokens."""
    settle_s: float = 2.0
    """A batch is taken for received by the trainer when the server is alive so long after it
    formed it. Until then nothing more is sent: this bounds batches per second."""
    max_batches_queued: float = 3.0
    """Nothing is sent while so many batches, of all environments, wait on the server."""
    poll_s: float = 0.25
    register_timeout_s: float | None = None
    """End with an error when no trainer has registered for so long; None: wait for ever."""
    idle_timeout_s: float | None = None
    """End when nothing happened for so long; None: never."""


@dataclass(slots=True)
class AtroposCounts:
    """Of one process, in groups."""

    posts: int = 0
    """Sent, repetitions included."""
    sent_again: int = 0
    """Of these: because a server had lost them before its trainer surely had them."""
    adopted: int = 0
    """Found on the server, where an earlier process had put them."""
    acknowledged: int = 0
    """Received by the trainer and acknowledged in Redis."""
    refused: Counter[str] = field(default_factory=Counter)
    """By reason; each has a dead letter."""
    dropped: Counter[str] = field(default_factory=Counter)
    """By reason: policy, not fault."""
    registrations: int = 0

    def summary(self) -> dict[str, int | dict[str, int]]:
        """All of it by name, for JSON. `asdict` breaks counters before Python 3.12."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in values.items()}
