"""The last lines that this process has logged."""

from __future__ import annotations

import logging
from collections import deque

from hermes_queue.telemetry.scrubbing import scrub

_LINES = 60
_CHARACTERS = 4000


class LogTail(logging.Handler):
    """Keeps the last log records, without secrets; attach it to the root logger."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._told = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; called with the handler's lock held."""
        try:
            self._lines.append(scrub(self.format(record)))
        except Exception:  # noqa: BLE001 - whatever its author's arguments raise
            self.handleError(record)

    def text(self) -> str:
        """The lines, as much of their end as a letter may hold."""
        self.acquire()
        try:
            lines = list(self._lines)
        finally:
            self.release()
        return "\n".join(lines)[-_CHARACTERS:]

    def news(self) -> str:
        """The text if it has changed since `told`, else an empty one."""
        text = self.text()
        return "" if text == self._told else text

    def told(self, text: str) -> None:
        """Remember that this text is known where it should be."""
        self._told = text
