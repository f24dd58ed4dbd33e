"""What a job says about the model that judges its trajectory."""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from hermes_queue.wire.conversation import Wire

SAMPLING_BYTES = 4096


def _small(sampling: dict[str, Any]) -> dict[str, Any]:
    try:
        size = len(json.dumps(sampling, allow_nan=False))
    except (ValueError, RecursionError):
        raise ValueError("sampling cannot be sent as JSON") from None
    if size > SAMPLING_BYTES:
        raise ValueError(f"sampling has {size} bytes, at most {SAMPLING_BYTES} are allowed")
    return sampling


class JudgeSpec(Wire):
    """A model that gives each trajectory a number, as `rewards.judge`."""

    model: str = Field(min_length=1, max_length=200)
    prompt: str = Field(min_length=1, max_length=8000)
    """What is to be judged, and what 0 and 1 mean."""
    base_url: str | None = Field(default=None, max_length=2000)
    """As in `AgentSpec`: None is the worker's `HERMES_QUEUE_MODEL_BASE_URL`."""
    sampling: Annotated[dict[str, Any], AfterValidator(_small)] = Field(default_factory=dict)
    """Passed to the endpoint unchanged."""
    timeout_s: float = Field(default=300.0, gt=0, le=3600)
    """Of all its answers together; waits for the endpoint are not counted."""
    transcript_chars: int = Field(default=200_000, ge=1000, le=2_000_000)
    """A longer transcript is shown without messages of its middle."""
    reasoning: bool = False
    """Whether the agent's reasoning is shown, too."""
