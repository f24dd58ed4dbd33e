"""The fleet's limits for creating sandboxes: a rate, and how many may be starting at once."""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from hermes_queue.errors import HermesQueueError
from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.sandbox.fleet import CreationRate, ProcessCreationGate

logger = logging.getLogger(__name__)

STARTING_TTL_S = 900.0
"""After this time a creation no longer counts, in case its worker has died."""


class FleetCreationGate:
    """A `CreationGate` that all workers of a deployment pass.

    While Redis does not answer, every worker keeps to the fleet's rate by itself: creation does
    not wait for Redis, and a provider refuses creations that are too fast.
    """

    def __init__(self, ledger: Ledger, backend: str) -> None:
        self._ledger = ledger
        self._backend = backend
        self._alone = ProcessCreationGate()

    @asynccontextmanager
    async def creating(self, rate: CreationRate) -> AsyncIterator[None]:
        """See `CreationGate`."""
        token = secrets.token_hex(8)
        try:
            while wait_s := await self._answer(token, rate):  # noqa: ASYNC110 - Redis' event
                # Jitter, so that waiting workers do not ask all at once.
                await asyncio.sleep(wait_s * random.uniform(1.0, 1.2))  # noqa: S311
        except HermesQueueError as error:
            extra = {"action": "creation_unlimited"}
            logger.warning("creating without the fleet's gate: %s", error, extra=extra)
            async with self._alone.creating(rate):
                yield
            return
        except asyncio.CancelledError:
            await self._leave(token)
            raise
        try:
            yield
        finally:
            await self._leave(token)

    async def _answer(self, token: str, rate: CreationRate) -> float:
        """`take`. If it is cancelled, it still waits for the answer.

        A `leave` that overtakes a `take` removes nothing, and the granted creation would count
        until `STARTING_TTL_S`.
        """
        asking = asyncio.ensure_future(asyncio.to_thread(self.take, token, rate))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.wait([asking])
            raise

    def take(self, token: str, rate: CreationRate) -> float:
        """Ask once; returns 0 = granted, else seconds to wait. Blocks.

        Raises:
            RedisUnavailable, RedisFull: it may be granted; may be repeated.
        """
        wait_s = self._ledger.call(
            "creation_take",
            backend=self._backend,
            creates_per_s=rate.creates_per_s,
            max_starting=rate.max_starting,
            token=token,
            starting_ttl_s=STARTING_TTL_S,
        )
        return float(wait_s)

    def leave(self, token: str) -> None:
        """Report that the sandbox has started, or will not. Blocks."""
        with explained(self._ledger.url):
            key = self._ledger.key(f"creation:{self._backend}:starting")
            self._ledger.client.zrem(key, token)

    async def _leave(self, token: str) -> None:
        try:
            await asyncio.to_thread(self.leave, token)
        except HermesQueueError as error:
            logger.debug("cannot report the end of a creation, which counts for longer: %s", error)
