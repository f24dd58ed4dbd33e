"""Verdicts of model probes, shared by the workers of a deployment through the ledger."""

from __future__ import annotations

import logging
from typing import cast, get_args

from hermes_queue.agent.endpoint.probe import ToolSupport
from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger.fleet.probes import Probes
from workers.runtime import Runtime

logger = logging.getLogger(__name__)


class SharedProbes:
    """A `ProbeCache` in Redis. While Redis is away, each process probes for itself."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._probes = Probes(runtime.ledger)

    async def load(self, endpoint: str, model: str) -> ToolSupport | None:
        """See `ProbeCache`."""
        try:
            verdict = await self._runtime.in_thread(self._probes.load, endpoint, model)
        except HermesQueueError as error:
            self._log(error)
            return None
        return cast(ToolSupport, verdict) if verdict in get_args(ToolSupport) else None

    async def save(self, endpoint: str, model: str, verdict: ToolSupport, ttl_s: float) -> None:
        """See `ProbeCache`."""
        try:
            await self._runtime.in_thread(self._probes.save, endpoint, model, verdict, ttl_s=ttl_s)
        except HermesQueueError as error:
            self._log(error)

    def _log(self, error: HermesQueueError) -> None:
        logger.warning(
            "the verdict of a probe is not shared: %s", error, extra={"action": "probe_unshared"}
        )
