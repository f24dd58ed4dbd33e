"""Opens Redis, and explains why it cannot be opened."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import redis
import redis.asyncio
from pydantic import SecretStr
from redis.asyncio.sentinel import MasterNotFoundError as AsyncMasterNotFoundError
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError

from hermes_queue.errors import (
    ConfigurationError,
    HermesQueueError,
    RedisFull,
    RedisUnavailable,
)
from hermes_queue.keyspace import sentinel
from hermes_queue.settings import DEFAULT_REDIS_URL, RedisSettings
from hermes_queue.settings.redis import SentinelAddress, check_redis_url

C = TypeVar("C")

MIN_VERSION = (6, 2)
READ_BYTES = 1 << 20
"""An asyncio client takes this much at once: a group of records comes in few pieces, each of which
costs a turn of the event loop."""
NO_EVICTION_REMEDY = "CONFIG SET maxmemory-policy noeviction, and in its configuration file"

_CHECK = "check user and password in HERMES_QUEUE_REDIS_URL"
_NO_RIGHT = (
    "put a Redis user with this right into HERMES_QUEUE_REDIS_URL: of those in "
    "deploy/redis/users.acl, `operator` may do what commands do, and `viewer` see what they show"
)
_NO_PASSWORD = {"HELLO": "it requires a password", "Authe": "it requires a password"}
"""redis-py's messages about a missing password, by their first letters."""

_REFUSED = ("NOPERM", "The user executing the script can't")
"""Words of errors about our rights; the last is how a script reports them."""

_PASSING = (
    "LOADING",
    "BUSY",
    "READONLY",
    "MISCONF",
    "NOREPLICAS",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "UNBLOCKED",
)
"""First words of errors that will pass: Redis loads its data, its disk is full, it was replaced."""

_SECRET_OPTION = re.compile(r"([?&](?:\w+_)?password=)[^&#]*", re.IGNORECASE)


def redis_url(settings: RedisSettings, url: str | None = None) -> str:
    """The URL in force: the argument, else `HERMES_QUEUE_REDIS_URL`, else `DEFAULT_REDIS_URL`.

    Raises:
        ConfigurationError: the scheme is not one of Redis.
    """
    value = url or (settings.url.get_secret_value() if settings.url else DEFAULT_REDIS_URL)
    try:
        check_redis_url(SecretStr(value))
    except ValueError as error:
        raise ConfigurationError(f"HERMES_QUEUE_REDIS_URL: {masked(value)!r} {error}") from error
    return value


def masked(url: str) -> str:
    """`url` without its passwords, for logs and errors."""
    secret = url.partition("://")[2].rpartition("@")[0].partition(":")[2]
    if secret:
        url = url.replace(f":{secret}@", ":***@", 1)
    return _SECRET_OPTION.sub(r"\1***", url)


def _open(make: Callable[..., C], settings: RedisSettings, url: str, **more: Any) -> C:
    """A client of one server, not yet connected."""
    if not url.startswith("unix"):
        more["socket_keepalive"] = True
    more |= {"socket_timeout": settings.timeout_s(url), **settings.tls_options(url)}
    try:
        return make(url, socket_connect_timeout=settings.connect_timeout_s, **more)
    except ValueError as error:
        raise ConfigurationError(f"HERMES_QUEUE_REDIS_URL: {error}") from error


def connect(settings: RedisSettings, url: str | None = None, *, retry: bool = True) -> redis.Redis:
    """A client whose server has answered a ping.

    With `retry=False` a failed command fails at once, for callers with a deadline.

    Raises:
        ConfigurationError: the URL is missing or malformed.
        RedisUnavailable: no answer, wrong credentials, or a server that is too old.
    """
    target = redis_url(settings, url)
    address = SentinelAddress.parse(target)
    client: redis.Redis
    if address:
        client = sentinel.client(address, settings, target, patient=retry)
    else:
        more = {} if retry else {"retry": Retry(NoBackoff(), 0)}
        client = _open(redis.Redis.from_url, settings, target, **more)
    with explained(target):
        client.ping()
        _check_version(client)
    return client


def connect_async(settings: RedisSettings, url: str | None = None) -> redis.asyncio.Redis:
    """An asyncio client; it connects with its first command.

    Raises:
        ConfigurationError: the URL is missing or malformed.
    """
    target = redis_url(settings, url)
    if address := SentinelAddress.parse(target):
        return sentinel.async_client(address, settings, target, socket_read_size=READ_BYTES)
    return _open(redis.asyncio.Redis.from_url, settings, target, socket_read_size=READ_BYTES)


def _check_version(client: redis.Redis) -> None:
    """Refuse servers older than 6.2; accept one that reports no version (fakeredis)."""
    try:
        info: Any = client.info("server")
    except redis.ResponseError:
        return
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < MIN_VERSION:
        raise RedisUnavailable(f"Redis {version} is too old: 6.2 or newer is needed")


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn redis-py's errors into ours, with the next step."""
    try:
        yield
    except (redis.ConnectionError, redis.TimeoutError, redis.ResponseError, OSError) as error:
        if (ours := explanation(url, error)) is error:
            raise
        raise ours from error


def explanation(url: str, error: Exception) -> Exception:
    """Our error for one of redis-py; `error` itself if it is a bug of ours."""
    ours = _explained(f"Redis at {masked(url)}", error)
    if ours is None:
        return error
    ours.__cause__ = error
    return ours


def _explained(server: str, error: Exception) -> HermesQueueError | None:
    """Our error for one of redis-py; None for a bug of ours, such as a wrong command."""
    text = str(error)
    if isinstance(error, redis.AuthenticationError):
        return RedisUnavailable(
            f"{server} refuses us ({_NO_PASSWORD.get(text[:5], text)}); {_CHECK}"
        )
    if "DB index" in text:  # the answer to SELECT, which each connection begins with
        return ConfigurationError(
            f"{server} has no such database ({text}): correct the number at the end of "
            "HERMES_QUEUE_REDIS_URL, or raise `databases` in redis.conf"
        )
    if isinstance(error, NoPermissionError):
        return RedisUnavailable(f"{server} refuses us ({text}); {_NO_RIGHT}")
    if isinstance(error, MasterNotFoundError | AsyncMasterNotFoundError):
        return RedisUnavailable(
            f"{server}: no sentinel knows a master of that name that is up ({text}); in a "
            "failover this passes within seconds, else see `redis-cli -p 26379 sentinel masters`"
        )
    if any(word in text for word in sentinel.DEMOTED):
        return RedisUnavailable(f"{server} refuses writes for now: {text}")
    if isinstance(error, redis.ConnectionError | redis.TimeoutError | OSError):
        return RedisUnavailable(
            f"{server} cannot be reached: {text}; start it, or correct HERMES_QUEUE_REDIS_URL (a "
            "producer without it runs everything on this machine)"
        )
    if isinstance(error, redis.ReadOnlyError) or any(word in text for word in _PASSING):
        return RedisUnavailable(f"{server} refuses writes for now: {text}")
    if any(word in text for word in _REFUSED):
        return RedisUnavailable(f"{server} refuses us ({text}); {_NO_RIGHT}")
    if isinstance(error, redis.OutOfMemoryError) or "OOM" in text:
        return RedisFull(f"{server} is full ({text}); raise maxmemory or let consumers catch up")
    return None
