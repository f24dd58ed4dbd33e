"""Whether this worker has been ordered to end.

Celery keeps the exit code in its flags, and 0 is one: a flag is unset only as None or False.
"""

from __future__ import annotations

from celery.worker import state


def is_ordered() -> bool:
    """Whether a signal or remote control has asked the worker to end, warm or cold."""
    return _is_set(state.should_stop) or _is_set(state.should_terminate)


def is_cold() -> bool:
    """Whether the worker is to end at once, without waiting for its jobs."""
    return _is_set(state.should_terminate)


def _is_set(flag: object) -> bool:
    return flag is not None and flag is not False
