"""Whether this worker has been ordered to end.

Celery's flags hold the exit code, which may be 0: only None or False means unset.
"""

from __future__ import annotations

from celery.worker import state


def is_ordered() -> bool:
    """Whether a signal or remote control has ordered the worker to end, warm or cold."""
    return _is_set(state.should_stop) or _is_set(state.should_terminate)


def is_cold() -> bool:
    """Whether the worker is to end at once, without waiting for its jobs."""
    return _is_set(state.should_terminate)


def _is_set(flag: object) -> bool:
    return flag is not None and flag is not False
