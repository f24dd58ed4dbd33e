"""Limits of the stages that a job does not limit itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from hermes_queue.settings import WorkerSettings


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Seconds; None = no limit. Those of setup, agent and verify are the job's (`Limits`)."""

    load_s: float | None = None
    prepare_s: float | None = None
    acquire_s: float | None = None
    release_s: float | None = None

    @classmethod
    def of(cls, settings: WorkerSettings) -> Self:
        """As this worker's settings say."""
        return cls(
            load_s=settings.load_timeout_s,
            prepare_s=settings.prepare_timeout_s,
            acquire_s=settings.acquire_timeout_s,
            release_s=settings.release_timeout_s,
        )


NO_LIMITS = StageLimits()
