"""Checks of the Redis server: reachable, persistent, roomy, synchronous clock, no other apps."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Generator, Iterator, Mapping
from statistics import median
from typing import Any, cast

import redis

from hermes_queue.broker.embedded import find_redis_server
from hermes_queue.cli.doctor import Finding, error, ok, warning
from hermes_queue.errors import ConfigurationError, HermesQueueError
from hermes_queue.keyspace.connection import NO_EVICTION_REMEDY, explained, masked
from hermes_queue.keyspace.sentinel import ask
from hermes_queue.ledger import Ledger
from hermes_queue.settings import LeaseSettings, RedisSettings
from hermes_queue.settings.redis import SentinelAddress

TIMEOUT_S = 5.0
SLOW_S = 0.05
SKEW_S = 2.0
"""Clock offset from which on displayed ages are misleading. Leases depend only on Redis' clock."""
FULL_SHARE = 0.8
MOST_PAGES = 300
"""Limit of a scan, in pages of a thousand keys; keys beyond it are not checked."""
PATCHED = {(6, 2): 20, (7, 2): 11, (7, 4): 6, (8, 0): 4, (8, 2): 2}
"""By branch, the patch release from which the holes in Lua that became public in October 2025 are
mended (CVE-2025-49844 and three others). Branches after these have them mended from the start."""
_BINDING = "_kombu.binding."
_OURS = ("v1.", "celeryev", "celery.pidbox", "reply.celery.pidbox")


def redis_findings() -> Generator[Finding, None, Ledger | None]:
    """Yield findings; return the open ledger if Redis answers."""
    if RedisSettings().url is None:
        try:
            text = f"not configured; producers start {find_redis_server()} themselves"
            yield ok("redis.reachable", text)
        except ConfigurationError as problem:
            yield error("redis.reachable", str(problem))
        return None
    ledger: Ledger | None = None
    try:
        ledger = Ledger.connect(timeout_s=TIMEOUT_S)
        yield from _server(ledger)
    except HermesQueueError as problem:
        yield error("redis.reachable", str(problem))
        if ledger:
            ledger.close()
        return None
    return ledger


def _server(ledger: Ledger) -> Iterator[Finding]:
    client: Any = ledger.client
    try:
        with explained(ledger.url):
            info: Mapping[str, Any] = client.info()
    except HermesQueueError as problem:
        yield warning(
            "redis.reachable",
            f"answers, but refuses INFO: {problem}",
            "run doctor as a user that may call INFO, e.g. the workers' user",
        )
        return
    version = info.get("redis_version", "?")
    yield ok("redis.reachable", f"{masked(ledger.url)}, Redis {version}")
    if info.get("server_name") != "valkey":  # it names the Redis that it branched off
        yield from _age(str(version))
    yield _persistence(info)
    yield _eviction(info)
    yield _memory(info)
    yield _role(info)
    yield from _sentinels(ledger, info)
    yield _writes(ledger)
    yield from _clock(ledger)
    yield from _neighbours(ledger)


def _age(version: str) -> Iterator[Finding]:
    numbers = re.match(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\b", version)
    *branch, patch = map(int, numbers.groups()) if numbers else (99, 0, 0)
    major, minor = branch
    if (major, minor) <= max(PATCHED) and patch < PATCHED.get((major, minor), patch + 1):
        yield warning(
            "redis.version",
            f"Redis {version} as published has known holes in Lua, which jobs run through",
            "upgrade to Redis 8 or a patched release of your branch; distributions mend older "
            "versions without a new number",
        )


def _persistence(info: Mapping[str, Any]) -> Finding:
    name = "redis.persistence"
    failed = [
        name
        for name in ("aof_last_write_status", "aof_last_bgrewrite_status", "rdb_last_bgsave_status")
        if info.get(name, "ok") != "ok"
    ]
    if failed:
        return error(
            name,
            f"Redis cannot write its data to disk ({', '.join(failed)})",
            "free space on its disk and see its log; it refuses writes until then",
        )
    if not info.get("aof_enabled"):
        return warning(
            name,
            "the append-only file is off: a crash of Redis loses results since its last snapshot",
            "start it with --appendonly yes --appendfsync everysec",
        )
    return ok(name, "append-only file on")


def _eviction(info: Mapping[str, Any]) -> Finding:
    name, policy = "redis.eviction", str(info.get("maxmemory_policy", "noeviction"))
    if policy == "noeviction":
        return ok(name, policy)
    remedy = NO_EVICTION_REMEDY
    if not info.get("maxmemory"):
        return warning(name, f"{policy}: would delete jobs once maxmemory is set", remedy)
    return error(name, f"{policy}: Redis deletes jobs and results when it is full", remedy)


def _memory(info: Mapping[str, Any]) -> Finding:
    name = "redis.memory"
    used, most = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    text = f"{used / 2**20:.1f} MB used"
    if not most:
        return warning(
            name,
            f"{text}, no limit: Redis can take all memory of its host, which may then kill it",
            "set maxmemory; a job takes about 1 KB, a finished trajectory the size of its record",
        )
    text += f" of {most / 2**20:.1f} MB"
    remedy = "raise maxmemory, or let consumers catch up (hermes-queue groups list)"
    if used >= most:
        return error(name, f"{text}: full, nothing can be enqueued or published", remedy)
    if used >= FULL_SHARE * most:
        return warning(name, text, remedy)
    return ok(name, text)


def _role(info: Mapping[str, Any]) -> Finding:
    role = info.get("role", "master")
    if role == "master":
        return ok("redis.role", "master")
    return error(
        "redis.role", f"it is a {role} and accepts no writes", "put the master into the URL"
    )


def _sentinels(ledger: Ledger, info: Mapping[str, Any]) -> Iterator[Finding]:
    """With Redis Sentinel: who of them answers, and whether somebody could take over."""
    address, name = SentinelAddress.parse(ledger.url), "redis.sentinels"
    if address is None:
        return
    settings, silent = RedisSettings(), []
    for node in address.sentinels:
        try:
            ask(address, settings, ledger.url, node)
        except redis.RedisError as problem:
            silent.append(f"{node[0]}:{node[1]} ({problem})")
    text = f"{len(address.sentinels) - len(silent)} of {len(address.sentinels)} answer"
    if silent:
        remedy = "start them: without a majority of the sentinels nobody takes over"
        yield warning(name, f"{text}; silent: {', '.join(silent)}", remedy)
    elif len(address.sentinels) < 3:
        yield warning(name, text, "run three on different hosts, and name all of them in the URL")
    else:
        yield ok(name, text)
    replicas = int(info.get("connected_slaves", 0))
    if replicas <= settings.confirm_replicas:
        yield warning(
            "redis.replicas",
            f"{replicas} replicas, of which {settings.confirm_replicas} have to confirm writes",
            "run one more: workers wait while one of these is away"
            if settings.confirm_replicas
            else "start a replica: nobody can take over",
        )
    else:
        yield ok("redis.replicas", f"{replicas}")


def _writes(ledger: Ledger) -> Finding:
    name, key = "redis.writes", ledger.key(f"doctor:{secrets.token_hex(8)}")
    try:
        with explained(ledger.url):
            ledger.client.set(key, "x" * 1000, px=10_000)
            ledger.client.delete(key)
    except HermesQueueError as problem:
        return error(name, str(problem))
    except redis.ResponseError as problem:
        return error(name, f"a write fails: {problem}", "see the log of redis-server")
    return ok(name, "a key was written and deleted")


def _clock(ledger: Ledger) -> Iterator[Finding]:
    client: Any = ledger.client
    trips, offsets = [], []
    for _ in range(5):
        before, wall = time.monotonic(), time.time()
        with explained(ledger.url):
            seconds, micros = client.time()
        trip_s = time.monotonic() - before
        trips.append(trip_s)
        offsets.append(wall + trip_s / 2 - (seconds + micros / 1e6))
    trip_s, skew_s = median(trips), median(offsets)
    text = f"{1000 * trip_s:.1f} ms per round trip"
    if trip_s > SLOW_S:
        remedy = "run workers near their Redis; every turn of a job calls it"
        yield warning("redis.latency", text, remedy)
    else:
        yield ok("redis.latency", text)
    text = f"this host's clock is {abs(skew_s):.1f} s {'ahead' if skew_s > 0 else 'behind'}"
    remedy = "synchronize the clocks of both hosts (chrony, systemd-timesyncd)"
    if abs(skew_s) > LeaseSettings().duration_s:
        text += ": ages and budgets are wrong, certificates may be refused"
        yield error("redis.clock", text, remedy)
    elif abs(skew_s) > SKEW_S:
        yield warning("redis.clock", f"{text}: ages are wrong by the same amount", remedy)
    else:
        yield ok("redis.clock", text)


def _neighbours(ledger: Ledger) -> Iterator[Finding]:
    """Look for other Celery apps in the same database; their kombu bindings show their key prefix.

    An app under our own prefix shares kombu's `unacked` with us: the app with the shorter
    visibility_timeout restores the other's running messages.
    """
    name, client = "redis.neighbours", cast(Any, ledger.client)
    found, cursor = set[tuple[str, str]](), 0
    for _ in range(MOST_PAGES):
        with explained(ledger.url):
            cursor, keys = client.scan(cursor, match=f"*{_BINDING}*", count=1000)
        for key in keys:
            prefix, _, queue = key.decode(errors="replace").partition(_BINDING)
            found.add((prefix, queue))
        if not cursor:
            break
    foreign = sorted(
        q for prefix, q in found if prefix == ledger.prefix and not q.startswith(_OURS)
    )
    others = sorted({repr(prefix) for prefix, _ in found if prefix != ledger.prefix})
    if foreign:
        yield error(
            name,
            f"another Celery app uses our key prefix {ledger.prefix!r} here (queues: "
            f"{', '.join(foreign)}): "
            "its visibility_timeout and ours restore each other's messages",
            "move it to another database, or set another HERMES_QUEUE_REDIS_PREFIX here",
        )
    elif others:
        yield warning(
            name,
            f"other Celery apps share this database, under the prefixes {', '.join(others)}",
            "a separate database is safer: FLUSHDB and a full memory affect both",
        )
    else:
        yield ok(name, "no other Celery app uses this database")
