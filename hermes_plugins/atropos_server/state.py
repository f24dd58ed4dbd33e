"""What the server must know after a crash: the trainer, and what it has of which batch.

The journal beside it says which groups were handed out as the batch of which step.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_plugins.atropos_server.options import Registration
from hermes_queue.disk.durable import make_directory
from hermes_queue.disk.locked import replacing
from hermes_queue.errors import ConfigurationError

FILE_NAME = "hermes_queue.atropos.json"


class TrainerProgress(BaseModel):
    """How far the trainer is. Steps are numbers of batches."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    registration: Registration | None = None
    """None before a trainer has registered."""
    saved: int = Field(default=0, ge=0)
    """Last step whose batch is the trainer's for good."""
    delivered: int = Field(default=0, ge=0)
    """Last step whose batch has arrived at the trainer's host."""
    old_files: Mapping[int, int] = Field(default_factory=dict)
    """Step -> mtime in ns of a checkpoint's file that was there before its batch."""


class ProgressFile:
    """The file of a `TrainerProgress`. The journal's lock keeps other processes away.

    Raises:
        ConfigurationError: the file is damaged or cannot be read; it stays unchanged.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        try:
            make_directory(directory)
            text = self.path.read_text("utf-8") if self.path.exists() else "{}"
            self.progress = TrainerProgress.model_validate_json(text)
        except (OSError, ValidationError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"{self.path}: cannot be read: {error}") from error

        self._turn = threading.Lock()

    def update(self, **changes: Any) -> None:
        """Change fields, durably; from any thread.

        Raises:
            HermesQueueError: the disk is full or failed; nothing was changed.
        """
        with self._turn:
            self._write(self.progress.model_copy(update=changes))

    def begin(self, progress: TrainerProgress) -> None:
        """Begin anew with `progress`, durably.

        Raises:
            HermesQueueError: the disk is full or failed; nothing was changed.
        """
        with self._turn:
            self._write(progress)

    def _write(self, progress: TrainerProgress) -> None:
        with replacing(self.path) as draft:
            draft.write_text(progress.model_dump_json(), "utf-8")
        self.progress = progress
