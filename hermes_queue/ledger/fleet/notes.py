"""Notes that workers leave for each other in Redis, and can do without."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from hermes_queue.errors import HermesQueueError

logger = logging.getLogger(__name__)

T = TypeVar("T")


async def unless_away(
    warning: str, extra: Mapping[str, str], call: Callable[..., T], *args: Any, **given: Any
) -> T | None:
    """The answer of `call(*args, **given)`, made in a thread; None while Redis is away or full.

    Then `warning` is logged with the error, and `extra`, which names the action.
    """
    try:
        return await asyncio.to_thread(call, *args, **given)
    except HermesQueueError as error:
        logger.warning("%s: %s", warning, error, extra=extra)
        return None


def note_key(*names: str) -> str:
    """A part of a key, of fixed length and without special characters of the names."""
    return hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]
