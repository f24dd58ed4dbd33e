"""Lets only one process at a time do something; its successor waits until it is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import redis
import redis.asyncio
from redis.asyncio.lock import Lock

from hermes_queue.cancellation import Cancellation, end_tasks
from hermes_queue.errors import HermesQueueError
from hermes_queue.keyspace.connection import connect_async, explained, redis_url
from hermes_queue.settings import RedisSettings

LEASE_S = 10.0
"""Time after which the key of a dead holder expires."""
RENEW_S = 2.0

_OUTAGE = (redis.RedisError, OSError)

logger = logging.getLogger(__name__)


class LeaseLost(HermesQueueError):
    """Another process holds the key now, because this one was silent for too long."""


def single_sink(name: str, url: str | None) -> AbstractAsyncContextManager[asyncio.Task[None]]:
    """`single_flight` on the key `sink:{name}`, with a Redis client of its own.

    Args:
        name: the consumer group, or another name that is unique to the sink.
        url: Redis; None = that of the settings.

    Raises:
        ConfigurationError: the URL is malformed.
        RedisUnavailable: not at once, but when the block begins.
    """
    settings = RedisSettings.read()
    client = connect_async(settings, url)
    return _connected(client, redis_url(settings, url), f"{settings.prefix}sink:{name}")


@asynccontextmanager
async def _connected(
    client: redis.asyncio.Redis, url: str, key: str
) -> AsyncIterator[asyncio.Task[None]]:
    async with AsyncExitStack() as stack:
        stack.push_async_callback(client.aclose)
        with explained(url):
            keeper = await stack.enter_async_context(single_flight(client, key))
        yield keeper


@asynccontextmanager
async def single_flight(
    client: redis.asyncio.Redis, key: str, lease_s: float = LEASE_S
) -> AsyncIterator[asyncio.Task[None]]:
    """Wait for `key` and hold it in the block; yields a task that ends only if the key is lost.

    Raises:
        redis.RedisError: Redis did not answer at the beginning. Later outages are waited out,
            since no other process can take the key meanwhile.
    """
    lock = client.lock(key, timeout=lease_s, thread_local=False)
    asked = False
    cancellation = Cancellation()
    while not await _taken(lock, cancellation):
        cancellation.raise_if_swallowed()
        if not asked:
            logger.info("waiting for %s", key, extra={"action": "single_flight_wait"})
        asked = True
        await asyncio.sleep(min(0.5, lease_s / 4))
    keeper = asyncio.create_task(_keep(client, key, lock, lease_s))
    try:
        cancellation.raise_if_swallowed()
        yield keeper
    finally:
        await end_tasks(keeper)
        with suppress(*_OUTAGE):
            await lock.release()  # by a script: between GET and DEL a successor may take the key


async def _taken(lock: Lock, cancellation: Cancellation) -> bool:
    try:
        return bool(await lock.acquire(blocking=False))
    except _OUTAGE:
        cancellation.raise_if_swallowed()
        raise


async def _keep(client: Any, key: str, lock: Lock, lease_s: float) -> None:
    while True:
        await asyncio.sleep(min(RENEW_S, lease_s / 4))
        try:
            if await lock.owned():
                await client.pexpire(key, int(lease_s * 1000))
            elif not await lock.acquire(blocking=False, token=lock.local.token):
                raise LeaseLost(f"{key}: another process took over; this one was silent too long")
        except _OUTAGE as error:
            logger.warning("cannot renew %s: %s", key, error, extra={"action": "renew_failed"})
