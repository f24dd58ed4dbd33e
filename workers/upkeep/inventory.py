"""The sandboxes of this worker, as reported to the ledger."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Mapping
from dataclasses import replace

from hermes_queue.errors import HermesQueueError
from hermes_queue.ledger import Ledger
from hermes_queue.ledger.fleet.sandboxes import Sandboxes, SandboxRecord
from hermes_queue.sandbox.base import Slot
from hermes_queue.sandbox.fleet import SandboxObserver
from hermes_queue.settings import LeaseSettings

logger = logging.getLogger(__name__)


class Inventory(SandboxObserver):
    """Observes sandboxes on the event loop; the keeper renews their leases from its thread.

    A record that Redis did not take is written with the next renewal. Until then the labels that
    the provider holds are enough for the reaper, so creation does not wait for Redis.
    """

    def __init__(self, ledger: Ledger, backend: str) -> None:
        self._ledger = ledger
        self._backend = backend
        self._lease_s = LeaseSettings().duration_s
        self._records: dict[str, SandboxRecord] = {}
        self._gone: set[str] = set()
        self._slots: dict[str, tuple[str, str]] = {}
        self._lock = threading.Lock()

    async def created(self, sandbox_id: str, labels: Mapping[str, str]) -> None:
        """See `SandboxObserver`."""
        host = socket.gethostname()
        record = SandboxRecord(sandbox_id, self._backend, host, time.time(), dict(labels))
        # Kept before Redis is asked: what Redis does not take now, the next renewal writes.
        with self._lock:
            self._records[sandbox_id] = record
        try:
            await asyncio.to_thread(Sandboxes(self._ledger).renew, [record], lease_s=self._lease_s)
        except HermesQueueError as error:
            extra = {"action": "sandbox_unrecorded"}
            logger.warning("sandbox %s is not in the ledger: %s", sandbox_id, error, extra=extra)

    def leased(self, slot: Slot) -> None:
        """See `SandboxObserver`."""
        with self._lock:
            self._slots[slot.slot_id] = (slot.sandbox_id, slot.trajectory_id)

    def released(self, slot_id: str) -> None:
        """See `SandboxObserver`."""
        with self._lock:
            self._slots.pop(slot_id, None)

    def gone(self, sandbox_id: str) -> None:
        """See `SandboxObserver`."""
        with self._lock:
            if self._records.pop(sandbox_id, None):
                self._gone.add(sandbox_id)

    def counts(self) -> dict[str, int]:
        """Return, for display, the sandboxes of this worker and their leased slots."""
        with self._lock:
            return {"sandboxes": len(self._records), "leased_slots": len(self._slots)}

    def renew(self, ledger: Ledger) -> None:
        """Renew every sandbox's lease and drop the records of ended ones. Blocks.

        Raises:
            RedisUnavailable, RedisFull: repeat the call.
        """
        with self._lock:
            gone = set(self._gone)
            slots: dict[str, dict[str, str]] = {name: {} for name in self._records}
            for slot, (name, job) in self._slots.items():
                slots.setdefault(name, {})[slot] = job
            records = [replace(each, slots=slots[name]) for name, each in self._records.items()]
        sandboxes = Sandboxes(ledger)
        sandboxes.renew(records, lease_s=self._lease_s)
        for sandbox_id in gone:
            sandboxes.forget(sandbox_id)
        # Only those forgotten above: the event loop may have added others in the meantime.
        with self._lock:
            self._gone -= gone
