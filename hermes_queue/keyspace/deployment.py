"""A deployment: one Redis and prefix, our scripts in it, and its live workers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Self

import redis

from hermes_queue.keyspace import scripts
from hermes_queue.keyspace.connection import check_eviction, connect, explained, redis_url
from hermes_queue.settings import RedisSettings

LIFE_TTL_S = 86400
"""How long a worker's life can be examined after its last beat."""


class Deployment:
    """One prefix in one Redis: runs scripts there and lists live workers."""

    def __init__(self, client: redis.Redis, *, prefix: str = "hq:", url: str = "") -> None:
        self.client = client
        self.prefix = prefix
        self.url = url
        self._registered: dict[str, Callable[..., Any]] = {}

    @classmethod
    def connect(
        cls, settings: RedisSettings | None = None, url: str | None = None, *, retry: bool = True
    ) -> Self:
        """Open Redis and check that it answers; `retry` as in `connection.connect`.

        Raises:
            ConfigurationError: no URL, or a malformed one.
            RedisUnavailable: no answer, wrong credentials, or too old.
        """
        section = settings or RedisSettings()
        return cls(
            connect(section, url, retry=retry), prefix=section.prefix, url=redis_url(section, url)
        )

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def refuse_eviction(self) -> None:
        """Check that this Redis does not evict keys, before anything depends on it.

        Raises:
            ConfigurationError: it deletes keys when it is full.
            RedisUnavailable: no answer.
        """
        check_eviction(self.client, self.url)

    def key(self, name: str) -> str:
        """`name` under the deployment's prefix."""
        return self.prefix + name

    def call(self, name: str, /, **given: Any) -> Any:
        """Run a script by the names in its header; returns its answer by name.

        Raises:
            TypeError: an argument is missing or unknown.
            RedisFull, RedisUnavailable: the script may or may not have run; it may be repeated.
        """
        script = scripts.script(name)
        keys, args = script.packed(self.prefix, given)
        run = self._registered.get(name)
        if run is None:
            run = self._registered[name] = self.client.register_script(script.source)
        with explained(self.url):
            return script.answer(run(keys=keys, args=args))

    def deployment_id(self) -> str:
        """The random id of this Redis' data, created by the first caller."""
        with explained(self.url):
            stored: Any = self.client.get(self.key("deployment"))
            if stored is None:  # a worker must also start while Redis is full
                self.client.set(self.key("deployment"), secrets.token_hex(8), nx=True)
                stored = self.client.get(self.key("deployment"))
        return str(stored.decode())

    # --- liveness -------------------------------------------------------------------------

    def beat(
        self,
        owner: str,
        facts: Mapping[str, Any],
        *,
        ttl_s: float,
        boot_id: str = "",
        shutting_down: bool = False,
    ) -> None:
        """Report that this worker lives, with facts about it.

        After `ttl_s` seconds it counts as silent. `boot_id` identifies the current boot of its
        host, "" = unknown. While it is `shutting_down`, its death is not held against its jobs.
        """
        self.call(
            "beat",
            owner=owner,
            facts=json.dumps(dict(facts)),
            ttl_s=ttl_s,
            boot_id=boot_id,
            shutting_down=shutting_down,
            life_ttl_s=LIFE_TTL_S,
        )

    def worker_ended(self, owner: str, *, boot_id: str, witnessed: bool = False) -> int:
        """Expire the leases of a worker that this process, under `boot_id`, has found dead.

        `witnessed`: this process is its parent.

        Returns:
            The number of expired leases; -1 if the worker is unknown or ran under another boot.
        """
        ended = self.call(
            "worker_ended",
            owner=owner,
            boot_id=boot_id,
            witnessed=witnessed,
            life_ttl_s=LIFE_TTL_S,
        )
        return int(ended)

    def unregister(self, owner: str) -> None:
        """Remove this worker from the list of live ones."""
        with explained(self.url), self.client.pipeline() as pipe:
            pipe.delete(self.key(f"worker:{owner}"))
            pipe.zrem(self.key("workers"), owner)
            pipe.execute()

    def workers(self) -> list[dict[str, Any]]:
        """Facts that the live workers of this deployment report.

        `silent_s` is added: seconds since the worker's last beat, by Redis' clock.
        """
        with explained(self.url):
            owners: Any = self.client.zrange(self.key("workers"), 0, -1)
            with self.client.pipeline(transaction=False) as pipe:
                for owner in owners:
                    pipe.get(self.key(f"worker:{owner.decode()}"))
                    pipe.pttl(self.key(f"worker:{owner.decode()}"))
                found = pipe.execute()
        return [
            facts | {"silent_s": max(0.0, facts.get("beat_s", 0.0) - left_ms / 1000)}
            for value, left_ms in zip(found[::2], found[1::2], strict=True)
            if value and (facts := json.loads(value))
        ]
