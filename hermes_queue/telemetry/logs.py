"""Log lines as text or JSON, without secrets, with the ids they belong to.

`action` is the stable key of an event (docs/logging.md lists them all); messages are for people
and may change.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from hermes_queue.settings import LogSettings
from hermes_queue.telemetry.scrubbing import Scrubber, scrubber
from hermes_queue.wire.ids import of_message, run_of

_TEXT = "[%(asctime)s: %(levelname)s/%(processName)s] %(message)s"
"""Celery's own format, for processes other than workers."""

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
"""Attributes of every log record; all others came with `extra`."""

_trajectory: ContextVar[str] = ContextVar("trajectory", default="")


@contextmanager
def about(trajectory_id: str) -> Iterator[None]:
    """Add the trajectory id to every line that this context logs in the block."""
    token = _trajectory.set(trajectory_id)
    try:
        yield
    finally:
        _trajectory.reset(token)


def current_trajectory() -> str:
    """The trajectory that this context logs about; "" = none."""
    return _trajectory.get()


def configure(level: int = logging.INFO) -> None:
    """Log to stderr in the configured format. For entry points."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_TEXT))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    install(root)


def install(logger: logging.Logger, settings: LogSettings | None = None) -> None:
    """Make the handlers of `logger` use the configured format. Idempotent."""
    section = settings or LogSettings()
    for handler in logger.handlers:
        if isinstance(handler.formatter, JsonFormatter | TextFormatter):
            continue
        if section.format == "json":
            handler.setFormatter(JsonFormatter(scrubber()))
        else:
            handler.setFormatter(TextFormatter(scrubber(), handler.formatter))


class TextFormatter(logging.Formatter):
    """Formats with another formatter and removes secrets."""

    def __init__(self, scrubs: Scrubber, inner: logging.Formatter | None = None) -> None:
        super().__init__()
        self._scrubs = scrubs
        self._inner = inner or logging.Formatter(_TEXT)

    def format(self, record: logging.LogRecord) -> str:
        """One event, with its traceback on further lines."""
        return self._scrubs.text(self._inner.format(record))


class JsonFormatter(logging.Formatter):
    """Formats each event as one JSON object on one line."""

    def __init__(self, scrubs: Scrubber) -> None:
        super().__init__()
        self._scrubs = scrubs

    def format(self, record: logging.LogRecord) -> str:
        """The event as JSON.

        Always present: ts (RFC 3339, UTC), level, logger, message, pid, thread. If known:
        action, trajectory_id, run_id and other fields of `extra`. For errors: exception.
        """
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        event: dict[str, Any] = {
            "ts": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
            "thread": record.threadName,
        }
        for name, value in fields_of(record).items():
            event.setdefault(name, value)
        if record.exc_info:
            event["exception"] = self.formatException(record.exc_info)
        # Scrub before encoding: JSON escapes would hide a secret, and replacing it in the encoded
        # line could break the JSON.
        return json.dumps(self._scrubs.tree(event), default=str)


def fields_of(record: logging.LogRecord) -> dict[str, str | int | float | bool]:
    """What is known of an event beside its text: its ids, `action` and other plain `extra`.

    Call it where the line is logged: the ids may be those of the context.
    """
    extra = {name: value for name, value in vars(record).items() if name not in _STANDARD}
    plain = {k: v for k, v in extra.items() if isinstance(v, str | int | float | bool)}
    return plain | _ids(extra)


def _ids(extra: dict[str, Any]) -> dict[str, str]:
    trajectory_id = extra.get("trajectory_id") or _trajectory.get() or _of_celery(extra.get("data"))
    run_id = extra.get("run_id") or run_of(trajectory_id)
    known = {"trajectory_id": trajectory_id, "run_id": run_id}
    return {name: value for name, value in known.items() if value}


_TASK_NAMES = ("hermes_queue.run_trajectory", "trajectory.")
"""The values of `queues.RUN_TRAJECTORY` and `queues.SHOWN_TASK`, repeated to avoid the import."""


def _of_celery(data: object) -> str:
    """The trajectory in Celery's own lines about a task, whose id is `<trajectory>.<attempt>`."""
    if not isinstance(data, dict) or not str(data.get("name")).startswith(_TASK_NAMES):
        return ""
    return of_message(str(data.get("id", "")))[0]
