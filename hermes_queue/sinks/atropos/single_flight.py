"""Lets only one process at a time do something; its successor waits until it is gone."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hermes_queue.cancellation import end_tasks
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.results.sole_reader import SoleReader

_POLL_S = 0.5

logger = logging.getLogger(__name__)


class LeaseLost(HermesQueueError):
    """Another process holds the key now, because this one was silent for too long."""


@asynccontextmanager
async def single_sink(name: str, url: str | None) -> AsyncIterator[asyncio.Task[None]]:
    """Wait for the key of `name` and hold it; yields a task that ends only if the key is lost.

    Args:
        name: the consumer group, or another name that is unique to the sink.
        url: Redis; None = that of the settings.

    Raises:
        ConfigurationError: the URL is malformed.
        RedisUnavailable: Redis did not answer at the beginning. Later outages are waited out,
            since no other process can take the key meanwhile.
    """
    ledger = Ledger.connect(url=url)
    identity = f"{os.getpid()}-{secrets.token_hex(8)}"
    reader = SoleReader(ledger, name, identity=identity, about="a sink")
    try:
        asked = False
        while other := await asyncio.to_thread(reader.take):
            if not asked:
                extra = {"action": "single_flight_wait"}
                logger.info("waiting for %s, which serves %s", other, name, extra=extra)
            asked = True
            await asyncio.sleep(_POLL_S)
        keeper = asyncio.create_task(_watch(reader, name))
        try:
            yield keeper
        finally:
            await end_tasks(keeper)
    finally:
        await asyncio.to_thread(reader.close)
        ledger.close()


async def _watch(reader: SoleReader, name: str) -> None:
    while True:
        if other := await asyncio.to_thread(reader.other):
            raise LeaseLost(f"{other} took over {name}; this process was silent for too long")
        await asyncio.sleep(_POLL_S)
