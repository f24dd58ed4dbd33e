"""Sandboxes, their owners and leased slots, for the reaper."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.sandbox.base import SandboxInfo

RECORD_TTL_S = 7 * 86400
"""Expiry of a record after its last renewal, in case no reaper runs."""


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox as its worker described it."""

    sandbox_id: str
    backend: str
    host: str
    """Host of the worker that created it."""
    created: float
    """Unix seconds of the worker's clock."""
    labels: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)
    """Leased slot -> trajectory in it."""
    lease_s: float = 0.0
    """Remaining seconds of the lease on Redis' clock when it was read; negative = it expired."""

    @property
    def worker(self) -> str:
        """The owner token of the worker that created it."""
        return self.labels.get("worker", "")


class Sandboxes:
    """The sandboxes of one deployment. Every call is safe to repeat.

    All methods raise `RedisUnavailable` or `RedisFull` when Redis cannot answer.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def renew(self, records: Iterable[SandboxRecord], *, lease_s: float) -> None:
        """Write the records, and lease them for `lease_s` from now."""
        facts = [asdict(record) for record in records]
        for each in facts:
            del each["lease_s"]  # a score
        if rows := [(each["sandbox_id"], json.dumps(each)) for each in facts]:
            self._ledger.call(
                "sandbox_renew", lease_s=lease_s, record_ttl_s=RECORD_TTL_S, records=rows
            )

    def forget(self, sandbox_id: str) -> None:
        """Drop the record of a sandbox that is gone."""
        key = self._ledger.key
        with explained(self._ledger.url), self._ledger.client.pipeline() as pipe:
            pipe.zrem(key("sandboxes"), sandbox_id)
            pipe.delete(key(f"sandbox:{sandbox_id}"))
            pipe.execute()

    def all(self) -> list[SandboxRecord]:
        """All records, those whose lease expired longest ago first."""
        with explained(self._ledger.url):
            client, key = self._ledger.client, self._ledger.key
            seconds, micros = client.time()
            leases: Any = client.zrange(key("sandboxes"), 0, -1, withscores=True)
            keys = [key(f"sandbox:{name.decode()}") for name, _ in leases]
            values: Any = client.mget(keys) if keys else []
        now = seconds + micros / 1e6
        return [
            SandboxRecord(**json.loads(value), lease_s=score - now)
            for (_, score), value in zip(leases, values, strict=True)
            if value
        ]

    def take_turn(self, backend: str, *, interval_s: float) -> bool:
        """Whether it is the caller's turn to reap: one worker of the fleet per `interval_s`."""
        return bool(self._ledger.call("reap_turn", backend=backend, interval_s=interval_s))

    def ownerless(
        self, backend: str, listed: Iterable[SandboxInfo], *, grace_s: float
    ) -> list[str]:
        """Ids whose worker has neither beaten nor held their lease for `grace_s`.

        Their records are dropped: the caller has to end them.
        """
        rows = [(info.sandbox_id, info.labels.get("worker", "")) for info in listed]
        found = self._ledger.call("reap_judge", backend=backend, grace_s=grace_s, listed=rows)
        return [sandbox_id.decode() for sandbox_id in found]
