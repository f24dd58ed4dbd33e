"""Output streams that background processes of one slot still hold when their command is over."""

from __future__ import annotations

from collections.abc import Iterable

from hermes_queue.sandbox.host.execution import OutputPipe

MOST = 32
"""Pipes of a slot; each is a descriptor of the worker."""

NOTICE = (
    f"output of earlier background processes is not taken any more, because more than {MOST} of "
    "their streams are open; they end when they write to it. Send the output of what runs in the "
    "background to files: command >log 2>&1 &"
)


class LeftOpen:
    """The pipes of one slot that are emptied until their last writer ends, oldest first."""

    def __init__(self) -> None:
        self._pipes: list[OutputPipe] = []

    def keep(self, pipes: Iterable[OutputPipe]) -> str:
        """Add the pipes of a finished command; a notice if older ones were closed for them."""
        self._pipes = [pipe for pipe in (*self._pipes, *pipes) if not pipe.ended.done()]
        surplus, self._pipes = self._pipes[:-MOST], self._pipes[-MOST:]
        for pipe in surplus:
            pipe.close()
        return NOTICE if surplus else ""

    def close(self) -> None:
        """Close all: nothing runs in the slot any more that could write."""
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()
