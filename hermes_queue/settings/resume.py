"""Trajectories that go on in another worker, and stages with places of their own."""

from __future__ import annotations

from pydantic import Field

from hermes_queue.settings.section import PREFIX, Section


class ResumeSettings(Section, env_prefix=PREFIX + "RESUME_"):
    """The turn journal, with which another worker continues a trajectory; see docs/resume.md."""

    enabled: bool = True
    """Whether turns are journaled and jobs of dead workers continue from them. Off: they start
    anew."""
    snapshot_s: float = Field(default=60.0, gt=0)
    """Seconds of the agent after which the slot's files are copied, at the end of a turn. Before
    the first copy nothing is journaled: short trajectories cost nothing."""
    snapshot_turns: int = Field(default=20, ge=1)
    """Turns after which they are copied, if that is sooner."""
    ttl_s: int = Field(default=7200, ge=60)
    """Age at which a journal that nobody adds to expires, and a snapshot that nobody has needed is
    deleted."""
    max_turns: int = Field(default=500, ge=1, le=5000)
    """Turns of one journal; later ones are lost with their worker."""
    max_bytes: int = Field(default=4 << 20, ge=1024, le=64 << 20)
    """Size of one journal in Redis, compressed; turns beyond it are lost with their worker."""


class StageSettings(Section, env_prefix=PREFIX + "STAGES_"):
    """How many trajectories may be in a stage at once; see docs/stages.md. Unset: no limit."""

    setup: int | None = Field(default=None, ge=1)
    """Trajectories of a worker whose workspace is set up at once."""
    agent: int | None = Field(default=None, ge=1)
    """Trajectories of a worker whose agent runs at once."""
    verify: int | None = Field(default=None, ge=1)
    """Trajectories of a worker that are graded at once."""
    fleet_setup: int | None = Field(default=None, ge=1)
    """As `setup`, of all workers together. Give all of them the same number."""
    fleet_agent: int | None = Field(default=None, ge=1)
    """As `agent`, of all workers together."""
    fleet_verify: int | None = Field(default=None, ge=1)
    """As `verify`, of all workers together."""
    prefetch: int = Field(default=0, ge=0, le=64)
    """Trajectories that a worker takes beyond its number of agents: they are set up in slots of
    their own, and wait for the place of an agent."""
    handover_most: int = Field(default=1000, ge=1)
    """Trajectories of the deployment that may wait to be graded by another worker; with more, a
    worker grades its own."""
    handover_ttl_s: int = Field(default=86400, ge=600, le=7 * 86400)
    """Seconds for which such work waits. After that its agent begins anew."""
    handover_max_bytes: int = Field(default=8 << 20, ge=1024, le=64 << 20)
    """Encoded size above which a worker grades its own."""
