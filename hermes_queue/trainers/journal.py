"""Which groups are in a trainer's weights: a durable line for each optimiser step.

The stream's acknowledgements cannot say it, since a crash throws the weights back to the last
checkpoint. The journal stands beside the checkpoints; a trainer that resumes from one cuts off the
lines of later steps, whose weights are lost.
"""

from __future__ import annotations

import json
import logging
import os
import weakref
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from hermes_queue.disk import locked as files
from hermes_queue.errors import ConfigurationError

logger = logging.getLogger(__name__)

_open: weakref.WeakSet[StepJournal] = weakref.WeakSet()
"""Those of this process. A child that is forked would hold their locks after its parent's death."""
FILE_NAME = "hermes_queue.journal"
_BEGINS = b'{"step":'
_SHARED = "end the trainer that has this directory, or give this one another directory"
_NOT_RECORDED = (
    "the step is not recorded; make room and call trained() again before these weights are saved"
)


class StepJournal:
    """The journal in a directory, which one process at a time holds.

    A line is JSON: `{"step": 3, "groups": ["run1-a", "run1-b"]}`. Steps never fall from line to
    line. A torn last line was never acknowledged to the trainer and is cut off.

    Raises:
        ConfigurationError: the file cannot be written, another process holds it, or it holds
            anything but such lines; then it stays unchanged.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / FILE_NAME
        self._steps: dict[str, int] = {}
        self._ends: list[tuple[int, int]] = []
        """Step and end of each line."""
        self._fd = files.open_locked(self.path, remedy=_SHARED)
        _open.add(self)
        try:
            self._read()
        except BaseException:
            self.close()
            raise

    @property
    def steps(self) -> Mapping[str, int]:
        """The step that each group was trained in."""
        return MappingProxyType(self._steps)

    @property
    def last_step(self) -> int | None:
        """The step of the last line; None if there is none."""
        return self._ends[-1][0] if self._ends else None

    def add(self, step: int, groups: Collection[str]) -> None:
        """Record that the weights after `step` hold these groups; durable on return.

        Raises:
            ValueError: an earlier step than the last one, or a group that the journal has.
            HermesQueueError: the disk is full or failed; nothing was recorded.
        """
        if step < max(0, self.last_step or 0):
            raise ValueError(
                f"step {step} comes after step {self.last_step} in {self.path}: after going back "
                "to a checkpoint, call resume() with its step"
            )
        if twice := sorted(group for group in groups if group in self._steps):
            raise ValueError(f"group {twice[0]} was trained in step {self._steps[twice[0]]}")
        if len(set(groups)) < len(groups):
            raise ValueError(f"step {step} has a group twice")
        if os.fstat(self._fd).st_size > (end := self._ends[-1][1] if self._ends else 0):
            files.cut(self._fd, self.path, end)  # what an interrupted call has left
        line = json.dumps({"step": step, "groups": list(groups)}) + "\n"
        files.append(self._fd, self.path, line.encode(), consequence=_NOT_RECORDED)
        self._keep(step, groups, os.lseek(self._fd, 0, os.SEEK_END))

    def resume(self, step: int) -> int:
        """Cut off the lines of steps after `step`, whose weights are lost; durable on return.

        Returns:
            The number of groups in the weights of `step`.

        Raises:
            HermesQueueError: the disk failed; call it again.
        """
        kept = [each for each in self._ends if each[0] <= step]
        if len(kept) < len(self._ends):
            files.cut(self._fd, self.path, kept[-1][1] if kept else 0)
            self._ends = kept
            self._steps = {group: at for group, at in self._steps.items() if at <= step}
        return len(self._steps)

    def close(self) -> None:
        """Close the file, so that another process may hold it. Idempotent."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read(self) -> None:
        data = files.read_whole(self._fd, os.fstat(self._fd).st_size, 0)
        start = 0
        while start < len(data):
            end = data.find(b"\n", start) + 1 or len(data)
            line = data[start:end]
            found = _parsed(line) if line.endswith(b"\n") else None
            if found is None and end == len(data) and _is_torn(line):
                files.cut(self._fd, self.path, start)
                extra = {"action": "journal_repaired", "path": str(self.path), "bytes": len(line)}
                logger.warning("%s: cut off a torn line", self.path, extra=extra)
                return
            if found is None:
                raise ConfigurationError(
                    f"{self.path}: byte {start}: not a line of a trainer's journal, or damaged; "
                    "it stays unchanged"
                )
            step, groups = found
            if step < (self.last_step or 0) or not self._steps.keys().isdisjoint(groups):
                raise ConfigurationError(
                    f"{self.path}: byte {start}: a step or a group that an earlier line excludes; "
                    "it stays unchanged"
                )
            self._keep(step, groups, end)
            start = end

    def _keep(self, step: int, groups: Collection[str], end: int) -> None:
        self._steps.update(dict.fromkeys(groups, step))
        self._ends.append((step, end))


def _close_all() -> None:
    for journal in list(_open):
        journal.close()


os.register_at_fork(after_in_child=_close_all)


def _parsed(line: bytes) -> tuple[int, list[str]] | None:
    """Step and groups of a line; None if it is not one."""
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.keys() != {"step", "groups"}:
        return None
    step, groups = found["step"], found["groups"]
    if type(step) is not int or step < 0 or not isinstance(groups, list):
        return None
    if not all(isinstance(each, str) for each in groups) or len(set(groups)) < len(groups):
        return None
    return step, groups


def _is_torn(tail: bytes) -> bool:
    """Whether the last line can be one of ours of which a power loss left only a part.

    A file system may keep the length of what was appended and zeros in place of its bytes.
    """
    written, zero, _ = tail.partition(b"\0")
    ours = written.startswith(_BEGINS) or _BEGINS.startswith(written)
    return not tail.strip(b"\0") or (ours and (bool(zero) or not tail.endswith(b"\n")))
