"""The last lines that this process has logged."""

from __future__ import annotations

import logging
from collections import deque

from hermes_queue.errors import printable
from hermes_queue.telemetry.scrubbing import scrub

_LINES = 60
_CHARACTERS = 4000


class LogTail(logging.Handler):
    """Keeps the last log records, without secrets; attach it to the root logger."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        self._lines: deque[str] = deque(maxlen=_LINES)
        self._reported = ""

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`; called with the handler's lock held."""
        try:
            self._lines.append(printable(scrub(self.format(record))))
        except Exception:  # noqa: BLE001 - a record's arguments may raise anything
            self.handleError(record)

    def text(self) -> str:
        """Return the end of the lines, as long as a dead letter may hold."""
        # Other threads log meanwhile, and a deque that changes while it is copied raises.
        self.acquire()
        try:
            lines = list(self._lines)
        finally:
            self.release()
        return "\n".join(lines)[-_CHARACTERS:]

    def news(self) -> str:
        """Return the text if it has changed since `reported`, else ""."""
        text = self.text()
        return "" if text == self._reported else text

    def reported(self, text: str) -> None:
        """Remember that the ledger has this text."""
        self._reported = text
