"""When a batch is the trainer's for good: the protocol has no acknowledgement."""

from __future__ import annotations

import logging
from pathlib import Path

from hermes_queue.sinks.atropos_server.options import AtroposServerOptions
from hermes_queue.sinks.atropos_server.state import Progress

logger = logging.getLogger(__name__)


class Durability:
    """The rule of `--ack`, and what it has to remember."""

    def __init__(self, options: AtroposServerOptions, progress: Progress) -> None:
        self._rule = options.ack
        self._template = options.checkpoint
        self._progress = progress

    def remember(self, step: int) -> None:
        """Remember the file of this step's checkpoint, if an earlier training has left one.

        Call it before the batch of that step is handed out.
        """
        before = self._modified(step)
        kept = {k: v for k, v in self._progress.old_files.items() if self._progress.saved < k}
        self._progress.old_files = kept if before is None else {**kept, step: before}

    def durable(self, *, done: int, delivered: int) -> int:
        """The last step whose batch is the trainer's for good.

        Args:
            done: last step after which the trainer has asked for another batch.
            delivered: last step whose batch has arrived at the trainer's host.
        """
        saved = self._progress.saved
        if self._rule == "next":
            return max(saved, done)
        if self._rule == "interval":
            registration = self._progress.registration
            every = registration.save_checkpoint_interval if registration else 0
            return max(saved, done - done % every) if every > 0 else saved
        return max((s for s in range(saved + 1, delivered + 1) if self._is_new(s)), default=saved)

    def _is_new(self, step: int) -> bool:
        found = self._modified(step)
        return found is not None and found != self._progress.old_files.get(step)

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
