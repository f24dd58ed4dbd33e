"""When a batch is the trainer's for good: the protocol has no acknowledgement."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from hermes_plugins.atropos_server.options import AtroposServerOptions
from hermes_plugins.atropos_server.state import TrainerProgress

logger = logging.getLogger(__name__)


class Durability:
    """The rule of `--ack`."""

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
