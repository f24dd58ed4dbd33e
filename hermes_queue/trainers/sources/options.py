"""What a feed takes, and what it counts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from hermes_queue.models import Name
from hermes_queue.trainers.rows import MIN_STD


class FeedOptions(BaseModel):
    """What a feed takes, and how."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1)
    """Name of the consumer group, which no other process reads."""
    run: Name
    directory: Path
    """Of the journal: where the checkpoints are."""
    group_size: int = Field(ge=1)
    """Groups of another size are refused."""
    env: str | None = None
    max_lag: int | None = Field(default=None, ge=0)
    """Policy versions by which a group may be behind when it is taken; None = no bound."""
    on_stale: Literal["drop", "train"] = "drop"
    """What happens beyond `max_lag`; `train` is for losses that correct it, and only counts."""
    age: Literal["served", "begun"] = "served"
    """Which version counts: the one that served a turn, or the run's when the attempt began, for
    servers whose versions begin anew when they are restarted."""
    pace: bool | int = False
    """Hold the run back while (`max_lag` + 1) x this many groups are ahead of the trainer: the
    groups of a step, or as many as `take` is asked for if these are more; True = always as many as
    these. It stays when the feed is closed."""
    window: int = Field(default=0, ge=0)
    """Groups to hold back in memory and hand out by age; 0 keeps the order of the stream."""
    min_std: float | None = MIN_STD
    """Only groups whose scores have at least this standard deviation; None = all."""
    temperature: float | None = Field(default=None, gt=0)
    """At which the trainer recomputes logprobs: a run that is sampled at another one is refused.
    None = unknown."""
    url: str | None = None
    """Redis; default `HERMES_QUEUE_REDIS_URL`."""

    @model_validator(mode="after")
    def _check_pace(self) -> FeedOptions:
        if self.pace is not False and (self.pace < 1 or self.max_lag is None):
            raise ValueError("pace: is the number of groups of a step, or True; needs max_lag")
        return self


@dataclass(slots=True)
class FeedCounts:
    """Groups of this process so far, by outcome."""

    taken: int = 0
    """Handed to the trainer."""
    trained: int = 0
    """In the journal."""
    saved: int = 0
    """In a durable checkpoint, hence acknowledged."""
    recognised: int = 0
    """Delivered again though the weights or a kept batch hold them: not handed out."""
    dropped: int = 0
    """Older than `max_lag`: acknowledged, not handed out."""
    stale: int = 0
    """Older than `max_lag`, and handed out."""
    policy_unknown: int = 0
    """Handed out although nobody knows the age of a member."""
    equal: int = 0
    """With scores whose deviation is below `min_std`: acknowledged unread."""
    untrained_tokens: int = 0
    """Sampled tokens in sequences that the trainer leaves out, since it takes only the longest one
    of each trajectory."""
    refused: Counter[str] = field(default_factory=Counter)
    """Unfit, now dead letters, by reason."""
