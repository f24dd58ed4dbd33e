"""The section of tasks in the Harbor format."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from hermes_queue.settings.section import PREFIX, Section


class HarborSettings(Section, env_prefix=PREFIX + "HARBOR_"):
    """Tasks in the Harbor format; what their slots may use is a setting of images."""

    env: tuple[str, ...] = ()
    """Variables of the worker that `${...}` in tasks may read, e.g. ["HF_TOKEN"]. The agent can
    read their values."""
    without_network: Literal["run", "refuse"] = "run"
    """Action for a task that asks for a network where `HERMES_QUEUE_IMAGES_NETWORK` permits none:
    run it without, which its verdict says, or refuse it."""
    kit: bool = True
    """Whether verifiers without a network that fetch uv or Python packages get them from packages
    that the worker has downloaded."""
    force_build: bool = False
    """Whether to build a task's Dockerfile even if the task names a prebuilt image, e.g. on hosts
    that reach package indexes and no registry."""
    cache_mb: int = Field(default=4096, ge=1)
    """Disk space of task folders on the worker's host; the least recently used go first."""
    archive_mb: int = Field(default=128, ge=1, le=4096)
    """Most that an agent's files may have together when they are graded in another slot; the worker
    holds about three times this while it moves them."""
