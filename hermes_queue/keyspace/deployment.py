"""A deployment: one Redis and prefix, our scripts in it, and its live workers."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

import redis

from hermes_queue.errors import ConfigurationError
from hermes_queue.keyspace import scripts
from hermes_queue.keyspace.calls import ScriptCall, make_all
from hermes_queue.keyspace.connection import (
    NO_EVICTION_REMEDY,
    connect,
    explained,
    masked,
    redis_url,
)
from hermes_queue.settings import RedisSettings

T = TypeVar("T")

LIFE_TTL_S = 86400
"""Seconds after a worker's last beat in which its death can be examined."""
MOST_SLOTS = 1 << 20
"""Of one worker; a heartbeat that reports more is junk in this place."""
LEFT_TO_PARENT = -2
"""Answer of `worker_ended`: the worker's parent lives and reports the death."""


class Deployment:
    """One prefix in one Redis: runs scripts there and lists live workers."""

    def __init__(self, client: redis.Redis, *, prefix: str = "hq:", url: str = "") -> None:
        self.client = client
        self.prefix = prefix
        self.url = url
        self._registered: dict[str, Callable[..., Any]] = {}

    @classmethod
    def connect(cls, url: str | None = None, *, timeout_s: float | None = None) -> Self:
        """Open Redis and check that it answers.

        With `timeout_s`, a command fails after that time and is not tried again: for callers with a
        deadline.

        Raises:
            ConfigurationError: no URL, or a malformed one.
            RedisUnavailable: no answer, wrong credentials, or too old.
        """
        section = RedisSettings.read()
        if timeout_s is not None:
            quick = {"socket_timeout_s": timeout_s, "connect_timeout_s": timeout_s}
            section = section.model_copy(update=quick)
        client = connect(section, url, retry=timeout_s is None)
        return cls(client, prefix=section.prefix, url=redis_url(section, url))

    def close(self) -> None:
        """Close the connections."""
        self.client.close()

    def refuse_eviction(self) -> None:
        """Refuse a Redis that deletes keys when it is full; accept one that does not report it.

        Raises:
            ConfigurationError: it has a memory limit and another policy than noeviction.
            RedisUnavailable: no answer.
        """
        try:
            with explained(self.url):
                info: Any = self.client.info("memory")
        except redis.ResponseError:  # fakeredis
            return
        policy = info.get("maxmemory_policy", "noeviction")
        if policy != "noeviction" and info.get("maxmemory"):
            raise ConfigurationError(
                f"Redis at {masked(self.url)} deletes keys when it is full (maxmemory-policy "
                f"{policy}): jobs and results would vanish silently. {NO_EVICTION_REMEDY}"
            )

    def key(self, name: str) -> str:
        """`name` under the deployment's prefix."""
        return self.prefix + name

    def hash_fields(self, name: str, *fields: str) -> list[str]:
        """Fields of the hash `name`; "" for those that it does not have.

        Raises:
            RedisUnavailable: no answer.
        """
        with explained(self.url):
            found: Any = self.client.hmget(self.key(name), fields)
        return [value.decode() if value else "" for value in found]

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

    def make(self, call: ScriptCall[T]) -> T:
        """Make one call. Raises as `call` does."""
        [result] = self.make_all([call])
        if isinstance(result, Exception):
            raise result
        return cast(T, result)

    def make_all(self, calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        """Make independent calls together; see `calls.make_all`."""
        return make_all(self.client, self.url, self.prefix, calls)

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
        parent: str = "",
    ) -> None:
        """Report that this worker lives, with facts about it.

        After `ttl_s` seconds it counts as silent. `boot_id` identifies the current boot of its
        host, "" = unknown. While it is `shutting_down`, its death is not held against its jobs.
        `parent` is the worker that started it for the quarantine, "" = none.
        """
        self.call(
            "beat",
            owner=owner,
            facts=json.dumps(dict(facts)),
            ttl_s=ttl_s,
            boot_id=boot_id,
            shutting_down=shutting_down,
            parent=parent,
            life_ttl_s=LIFE_TTL_S,
        )

    def worker_ended(self, owner: str, *, boot_id: str, witnessed: bool = False) -> int:
        """Expire the leases of a worker that this process, under `boot_id`, has found dead.

        `witnessed`: this process is its parent.

        Returns:
            The number of expired leases; -1 if the worker is unknown or ran under another boot;
            `LEFT_TO_PARENT` if its parent lives, which will report it.
        """
        ttl_s = LIFE_TTL_S
        ended = self.call(
            "worker_ended", owner=owner, boot_id=boot_id, witnessed=witnessed, life_ttl_s=ttl_s
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
            if value and (facts := _facts(value))
        ]


def _facts(heartbeat: bytes) -> dict[str, Any]:
    """Read a heartbeat. A neighbour may have written it: what has another form is left out."""
    try:
        facts = json.loads(heartbeat)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(facts, dict):
        return {}
    for name in ("lanes", "paused_lanes", "endpoints"):
        if isinstance(facts.get(name), list):
            facts[name] = [each for each in facts[name] if isinstance(each, str)]
        else:
            facts.pop(name, None)
    if not isinstance(facts.get("beat_s"), int | float):
        facts.pop("beat_s", None)
    if type(slots := facts.get("slots")) is not int or not 0 <= slots <= MOST_SLOTS:
        facts.pop("slots", None)
    trouble = facts.pop("trouble", None)
    if isinstance(trouble, dict):
        facts["trouble"] = {run: text for run, text in trouble.items() if isinstance(text, str)}
    return facts
