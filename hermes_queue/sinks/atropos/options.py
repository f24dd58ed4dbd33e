"""Options and counters of the Atropos sink."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from hermes_queue.sinks.atropos.members import MissingPolicy
from hermes_queue.sinks.atropos.wire import SequencePolicy


@dataclass(frozen=True, slots=True)
class AtroposOptions:
    """Options of the sink: where to send, what, and how."""

    url: str
    """URL of the Atropos API server."""
    name: str = "hermes-queue"
    """Name of the environment in the trainer's displays."""
    group: str = "atropos"
    """Consumer group of the results stream; one sink process at a time serves it."""
    redis_url: str | None = None
    run_id: str | None = None
    env: str | None = None
    start: str | float = "0"
    group_size: int | None = None
    """Sequences per group; None: the size of the first group."""
    sequences: SequencePolicy = "longest"
    on_missing: MissingPolicy = "drop"
    missing_wait_s: float = 3600.0
    """Seconds that `wait` waits after the group was finished."""
    messages: bool = False
    """Whether to send the conversation beside the tokens."""
    settle_s: float = 2.0
    """Seconds for which the server must stay alive after it formed a batch until the trainer counts
    as having it. Nothing more is sent before that, so this bounds batches per second."""
    max_batches_queued: float = 3.0
    """Stop sending while this many batches, of all environments, wait on the server."""
    poll_s: float = 0.25
    register_timeout_s: float | None = None
    """End with an error if no trainer registers within this time; None: wait for ever."""
    idle_timeout_s: float | None = None
    """End after this long without progress; None: never."""


@dataclass(slots=True)
class AtroposCounts:
    """Counters of one process, in groups."""

    posts: int = 0
    """Posts sent, including repetitions."""
    sent_again: int = 0
    """Of these, sent again because a server had lost them before its trainer certainly had them."""
    adopted: int = 0
    """Posts of an earlier process found on the server."""
    acknowledged: int = 0
    """Received by the trainer and acknowledged in Redis."""
    refused: Counter[str] = field(default_factory=Counter)
    """Groups refused, by reason; each has a dead letter."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Groups dropped because of a policy, by reason."""
    registrations: int = 0

    def summary(self) -> dict[str, int | dict[str, int]]:
        """All counters by name, for JSON. `asdict` breaks counters before Python 3.12."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in values.items()}
