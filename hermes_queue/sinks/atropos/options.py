"""Options and counters of the Atropos sink."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields

from pydantic import Field

from hermes_queue.models import BranchLabel
from hermes_queue.sinks.atropos.members import MissingPolicy
from hermes_queue.sinks.base import START, SinkOptions
from hermes_queue.trainers.rows import SequencePolicy
from hermes_queue.wire.branches import TRAINED


class AtroposOptions(SinkOptions):
    """Options of the sink: where to send, what, and how."""

    url: str = Field(description="URL of the Atropos API server: http://host:port.")
    name: str = Field(default="hermes-queue", description="Name of the environment to register.")
    group: str = Field(default="atropos", description="Name of the consumer group.")
    run_id: str | None = Field(
        default=None, validation_alias="run", description="Send only groups of this run."
    )
    env: str | None = Field(default=None, description="Send only groups of this env.")
    start: str | float = Field(default="0", description=START)
    group_size: int | None = Field(
        default=None,
        ge=1,
        description="Refuse groups of another size. Default: the size of the first group.",
    )
    sequences: SequencePolicy = Field(
        default="longest", description="Token sequences to send of a trajectory that has several."
    )
    branches: tuple[BranchLabel, ...] = Field(
        default=TRAINED,
        validation_alias="branch",
        description="Send only sequences of a program's branches with this label; may be repeated.",
    )
    on_missing: MissingPolicy = Field(
        default="drop",
        description="Drop a group with members that were not measured, or wait for replacements.",
    )
    missing_wait_s: float = Field(
        default=3600.0,
        gt=0,
        validation_alias="missing_wait",
        description="With --on-missing wait: drop the group after this many seconds.",
    )
    messages: bool = Field(default=False, description="Also send the messages of the conversation.")
    allow_evaluation: bool = Field(
        default=False,
        description="Send also groups of an evaluation, on which nothing may be trained.",
    )
    settle_s: float = Field(
        default=2.0,
        ge=0,
        validation_alias="settle",
        description="A batch counts as received if the server is alive this many seconds later.",
    )
    """Nothing more is sent before that, so this bounds batches per second."""
    max_batches_queued: float = Field(
        default=3.0,
        gt=0,
        description="Pause while at least this many batches of all environments are queued.",
    )
    register_timeout_s: float | None = Field(
        default=None,
        gt=0,
        validation_alias="register_timeout",
        description="Give up if no trainer registers within this many seconds. Default: never.",
    )
    idle_timeout_s: float | None = Field(
        default=None,
        gt=0,
        validation_alias="idle_timeout",
        description="End after this many seconds without activity. Default: never.",
    )
    redis_url: str | None = None
    poll_s: float = 0.25


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
    untrained_tokens: int = 0
    """Sampled tokens, not groups: of sequences that are not sent, since only the longest one of a
    trajectory is."""

    def summary(self) -> dict[str, int | dict[str, int]]:
        """All counters by name, for JSON. `asdict` breaks counters before Python 3.12."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {k: dict(v) if isinstance(v, Counter) else v for k, v in values.items()}
