"""What a trainer's process reads, where the trainer itself cannot pass options on."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from hermes_queue.settings.section import PREFIX, Section


class TrainerSettings(Section, env_prefix=PREFIX + "TRAINER_", env_ignore_empty=True):
    """The feed of slime, whose command line cannot describe it; see docs/plugins/trainers.md."""

    run: str | None = None
    """Run whose groups are trained."""
    name: str = "trainer"
    """Consumer group; each training of a run has a name of its own."""
    env: str | None = None
    """Only groups of this env."""
    directory: Path | None = None
    """Of the journal. Default: where the trainer saves its checkpoints."""
    max_lag: int | None = Field(default=None, ge=0)
    """Policy versions by which a group may be behind; empty = no bound."""
    on_stale: Literal["drop", "train"] = "drop"
    """What happens to older groups."""
    window: int = Field(default=0, ge=0)
    """Groups to hold back and hand out by age."""
    max_tokens: int = Field(default=0, ge=0)
    """Groups with a longer token sequence become dead letters; 0 = no limit."""
