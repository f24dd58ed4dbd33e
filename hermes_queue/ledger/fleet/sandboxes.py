"""Which sandboxes exist, whose they are and who is in them; what the reaper goes by."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from hermes_queue.keyspace.connection import explained
from hermes_queue.ledger.ledger import Ledger
from hermes_queue.sandbox.base import SandboxInfo

RECORD_TTL_S = 7 * 86400
"""How long a record outlives its last renewal, should no reaper come by."""


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox as its worker described it."""

    sandbox_id: str
    backend: str
    host: str
    """Of the worker that created it."""
    created: float
    """Unix seconds of the worker's clock."""
    labels: Mapping[str, str] = field(default_factory=dict)
    slots: Mapping[str, str] = field(default_factory=dict)
    """Leased slot -> trajectory in it."""
    lease_s: float = 0.0
    """Seconds left of the lease on Redis' clock when it was read; negative = it ended."""

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
        """Write the records and hold their leases for `lease_s` from now."""
        args: list[Any] = [self._ledger.prefix, lease_s, RECORD_TTL_S]
        for record in records:
            facts = asdict(record)
            del facts["lease_s"]
            args += [record.sandbox_id, json.dumps(facts)]
        if len(args) > 3:
            self._ledger.call("sandbox_renew", ["sandboxes"], args)

    def forget(self, sandbox_id: str) -> None:
        """Drop a record: its sandbox is gone."""
        key = self._ledger.key
        with explained(self._ledger.url), self._ledger.client.pipeline() as pipe:
            pipe.zrem(key("sandboxes"), sandbox_id)
            pipe.delete(key(f"sandbox:{sandbox_id}"))
            pipe.execute()

    def all(self) -> list[SandboxRecord]:
        """Every record, those whose lease ended longest ago first."""
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
        """Whether the caller is to reap now: one in the fleet is, every `interval_s`."""
        keys = [f"reaper:{backend}:turn", f"reaper:{backend}:suspects"]
        return bool(self._ledger.call("reap_turn", keys, [interval_s]))

    def ownerless(
        self, backend: str, listed: Iterable[SandboxInfo], *, grace_s: float
    ) -> list[str]:
        """Ids whose worker neither beats nor holds their lease, for `grace_s` by now.

        Their records are dropped: the caller is to end them.
        """
        args: list[Any] = [self._ledger.prefix, grace_s]
        for info in listed:
            args += [info.sandbox_id, info.labels.get("worker", "")]
        keys = ["sandboxes", f"reaper:{backend}:suspects"]
        return [part.decode() for part in self._ledger.call("reap_judge", keys, args)]
