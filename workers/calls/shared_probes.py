"""Verdicts of model probes, so that a fleet probes each endpoint once."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, get_args

from hermes_queue.agent.endpoint.probe import ToolSupport
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import Ledger

logger = logging.getLogger(__name__)


class SharedProbes:
    """A `ProbeCache` in Redis. While Redis is away, each process probes for itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def load(self, endpoint: str, model: str) -> ToolSupport | None:
        """See `ProbeCache`."""
        found: Any = await _asked(
            partial(self._ledger.hash_fields, f"probe:{_hash(endpoint, model)}", "verdict")
        )
        return found[0] if found and found[0] in get_args(ToolSupport) else None

    async def save(self, endpoint: str, model: str, verdict: ToolSupport, ttl_s: float) -> None:
        """See `ProbeCache`."""
        await _asked(
            partial(
                self._ledger.call,
                "probe_save",
                hash=_hash(endpoint, model),
                endpoint=endpoint,
                model=model,
                verdict=verdict,
                ttl_s=ttl_s,
            )
        )


async def _asked(call: Callable[[], Any]) -> Any:
    try:
        return await asyncio.to_thread(call)
    except HermesQueueError as error:
        extra = {"action": "probe_unshared"}
        logger.warning("the verdict of a probe is not shared: %s", error, extra=extra)
        return None


def _hash(endpoint: str, model: str) -> str:
    """A key part of fixed length, without special characters of URLs."""
    return hashlib.sha256(f"{endpoint}\n{model}".encode()).hexdigest()[:32]
