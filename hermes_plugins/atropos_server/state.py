"""What the server must know after a crash: the trainer, what it has of which batch, and for good.

The journal beside it says which groups were handed out as the batch of which step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hermes_plugins.atropos_server.options import AtroposServerOptions, Registration
from hermes_queue.disk.durable import make_directory
from hermes_queue.disk.locked import replacing
from hermes_queue.errors import ConfigurationError

logger = logging.getLogger(__name__)

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


class Durability:
    """When a batch is the trainer's for good, by `--ack`: the protocol has no acknowledgement."""

    def __init__(self, options: AtroposServerOptions) -> None:
        self._rule = options.ack
        self._template = options.checkpoint

    def old_files(self, progress: TrainerProgress, step: int) -> Mapping[int, int]:
        """`TrainerProgress.old_files`, with the file that an earlier training left for this step.

        Call it before the batch of that step is handed out.
        """
        found = {at: time for at, time in progress.old_files.items() if progress.saved < at != step}
        before = self._modified(step)
        return found if before is None else {**found, step: before}

    def durable(self, progress: TrainerProgress, *, done: int) -> int:
        """The last step whose batch is the trainer's for good.

        Args:
            progress: what is known of the trainer.
            done: last step after which the trainer has asked for another batch.
        """
        saved = progress.saved
        if self._rule == "next":
            return max(saved, done)
        if self._rule == "interval":
            registration = progress.registration
            every = registration.save_checkpoint_interval if registration else 0
            return max(saved, done - done % every) if every > 0 else saved
        steps = range(progress.delivered, saved, -1)
        return next((step for step in steps if self._is_new(progress, step)), saved)

    def _is_new(self, progress: TrainerProgress, step: int) -> bool:
        found = self._modified(step)
        return found is not None and found != progress.old_files.get(step)

    def _modified(self, step: int) -> int | None:
        """When the file of this step's checkpoint was modified; None if there is none."""
        if self._template is None:
            return None
        path = Path(self._template.replace("{step}", str(step)))
        try:
            return path.stat().st_mtime_ns
        except FileNotFoundError:
            return None
        except OSError as error:
            extra = {"action": "atropos_checkpoint", "path": str(path)}
            logger.warning("%s: %s", path, error.strerror, extra=extra)
            return None
