"""A log handler that hands lines to the exporter, with the trace that they belong to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hermes_queue.telemetry.logs import fields_of
from hermes_queue.telemetry.otel.spans import AttributeValue
from hermes_queue.telemetry.scrubbing import scrubber

_OURS = __name__.rpartition(".")[0]
LINE_CHARACTERS = 8192
"""Characters of one line, and of one traceback."""

_plain = logging.Formatter()

LineFields = Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class LoggedLine:
    """A line as it was logged, and the span that it belongs to."""

    record: logging.LogRecord
    fields: LineFields
    trace_id: bytes = b""
    """b"" = none, as for `span_id`."""
    span_id: bytes = b""

    def text(self) -> str:
        """The text without secrets, which are replaced before it is cut."""
        return scrubber().text(self.record.message)[:LINE_CHARACTERS]

    def attributes(self) -> dict[str, AttributeValue]:
        """The fields, the logger and the error, without secrets and cut in the same way."""
        record, clean = self.record, scrubber()
        attributes: dict[str, AttributeValue] = {
            name: clean.text(value)[:LINE_CHARACTERS] if isinstance(value, str) else value
            for name, value in self.fields.items()
        }
        attributes["logger"] = record.name
        if record.exc_info:
            trace = clean.text(_plain.formatException(record.exc_info))
            attributes["exception.stacktrace"] = trace[-LINE_CHARACTERS:]
            if record.exc_info[0] is not None:
                attributes["exception.type"] = record.exc_info[0].__name__
        return attributes


class LineHandler(logging.Handler):
    """Takes lines without waiting. Lines about the export itself are not exported."""

    def __init__(self, take: Callable[[logging.LogRecord, LineFields], None], level: int) -> None:
        """`take` gets a record and its fields; it never waits."""
        super().__init__(level)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        if record.name.startswith(_OURS):
            return
        try:
            # What the text is made of may change later, and names of contexts belong to this one.
            record.message = record.getMessage()
            self._take(record, fields_of(record))
        except Exception:  # noqa: BLE001 - what cannot be formatted is reported like any other line
            self.handleError(record)
