"""Output streams that background processes of one slot still hold open after their command."""

from __future__ import annotations

from collections.abc import Iterable

from hermes_queue.sandbox.host.execution import OutputPipe

MOST = 32
"""Pipes per slot; each is a descriptor of the worker."""

NOTICE = (
    f"output of earlier background processes is no longer read, because more than {MOST} of "
    "their streams are open; they end when they write to it. Redirect the output of background "
    "processes to files: command >log 2>&1 &"
)


class LeftOpen:
    """The pipes of one slot that are read until their last writer ends, oldest first."""

    def __init__(self) -> None:
        self._pipes: list[OutputPipe] = []

    def keep(self, pipes: Iterable[OutputPipe]) -> str:
        """Add pipes of a finished command; returns a notice if older ones had to be closed."""
        self._pipes = [pipe for pipe in (*self._pipes, *pipes) if not pipe.ended.done()]
        surplus, self._pipes = self._pipes[:-MOST], self._pipes[-MOST:]
        for pipe in surplus:
            pipe.close()
        return NOTICE if surplus else ""

    def close(self) -> None:
        """Close all pipes: no process is left in the slot that could write."""
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()
