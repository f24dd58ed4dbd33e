"""Ending tasks that may not hear of their cancellation."""

from __future__ import annotations

import asyncio
from typing import Any


async def end_tasks(*tasks: asyncio.Task[Any]) -> None:
    """Cancel the tasks until they have ended, however they end.

    More than once: redis-py can report a cancellation in the middle of an answer as an outage
    (python/cpython#86296), and the bridge of Modal's SDK raises in place of it what the SDK raises
    in that moment. Loops that wait such failures out would go on for ever.
    """
    while running := {task for task in tasks if not task.done()}:
        for task in running:
            task.cancel()
        await asyncio.wait(running, timeout=1.0)
    for task in tasks:
        if not task.cancelled():
            task.exception()  # else asyncio complains that nobody asked for it
