"""Verdicts of model probes, so that a fleet probes each endpoint once."""

from __future__ import annotations

from functools import partial
from typing import Any, get_args

from hermes_queue.agent.endpoint.probe import ToolSupport
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.notes import note_key, unless_away

_asked = partial(unless_away, "the verdict of a probe is not shared", {"action": "probe_unshared"})


class SharedProbes:
    """A `ProbeCache` in Redis. While Redis is away, each process probes for itself."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    async def load(self, endpoint: str, model: str) -> ToolSupport | None:
        """See `ProbeCache`."""
        key = f"probe:{note_key(endpoint, model)}"
        found: Any = await _asked(self._ledger.hash_fields, key, "verdict")
        return found[0] if found and found[0] in get_args(ToolSupport) else None

    async def save(self, endpoint: str, model: str, verdict: ToolSupport, ttl_s: float) -> None:
        """See `ProbeCache`."""
        await _asked(
            self._ledger.call,
            "probe_save",
            hash=note_key(endpoint, model),
            endpoint=endpoint,
            model=model,
            verdict=verdict,
            ttl_s=ttl_s,
        )
