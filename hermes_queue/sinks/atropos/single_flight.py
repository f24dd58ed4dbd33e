"""Lets only one process at a time do something; its successor waits until it is gone."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import redis
import redis.asyncio

from hermes_queue.cancellation import Cancellation, end_tasks
from hermes_queue.errors import HermesQueueError

LEASE_S = 10.0
"""Time after which the key of a dead holder expires."""
RENEW_S = 2.0

_OUTAGE = (redis.RedisError, OSError)

logger = logging.getLogger(__name__)


class LeaseLost(HermesQueueError):
    """Another process holds the key now, because this one was silent for too long."""


@asynccontextmanager
async def single_flight(
    client: redis.asyncio.Redis, key: str, lease_s: float = LEASE_S
) -> AsyncIterator[asyncio.Task[None]]:
    """Wait for `key` and hold it in the block; yields a task that ends only if the key is lost.

    Raises:
        redis.RedisError: Redis did not answer at the beginning. Later outages are waited out,
            since no other process can take the key meanwhile.
    """
    token = secrets.token_hex(8)
    asked = False
    cancellation = Cancellation()
    while not await _taken(client, key, token, lease_s, cancellation):
        cancellation.raise_if_swallowed()
        if not asked:
            logger.info("waiting for %s", key, extra={"action": "single_flight_wait"})
        asked = True
        await asyncio.sleep(min(0.5, lease_s / 4))
    keeper = asyncio.create_task(_keep(client, key, token, lease_s))
    try:
        cancellation.raise_if_swallowed()
        yield keeper
    finally:
        await end_tasks(keeper)
        with suppress(*_OUTAGE):
            # Not atomic: if the key expires between GET and DEL, this deletes a successor's.
            # `_keep` of that process then sees it gone and sets it again.
            if await client.get(key) == token.encode():
                await client.delete(key)


async def _taken(
    client: Any, key: str, token: str, lease_s: float, cancellation: Cancellation
) -> bool:
    try:
        return bool(await client.set(key, token, nx=True, px=int(lease_s * 1000)))
    except _OUTAGE:
        cancellation.raise_if_swallowed()
        raise


async def _keep(client: Any, key: str, token: str, lease_s: float) -> None:
    ttl_ms = int(lease_s * 1000)
    while True:
        await asyncio.sleep(min(RENEW_S, lease_s / 4))
        try:
            holder = await client.get(key)
            if holder == token.encode():
                await client.pexpire(key, ttl_ms)
            elif holder is not None or not await client.set(key, token, nx=True, px=ttl_ms):
                raise LeaseLost(f"{key}: another process took over; this one was silent too long")
        except _OUTAGE as error:
            logger.warning("cannot renew %s: %s", key, error, extra={"action": "renew_failed"})
