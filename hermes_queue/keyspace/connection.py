"""Opens Redis, and explains why it cannot be opened."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import redis
import redis.asyncio
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from hermes_queue.errors import ConfigurationError, RedisFull, RedisUnavailable
from hermes_queue.settings import DEFAULT_REDIS_URL, RedisSettings

MIN_VERSION = (6, 2)
NO_EVICTION_REMEDY = "CONFIG SET maxmemory-policy noeviction, and in its configuration file"

_NO_PASSWORD = {"HELLO": "it requires a password", "Authe": "it requires a password"}
"""redis-py's messages about a missing password, by their first letters."""

_REFUSED = ("NOAUTH", "WRONGPASS", "NOPERM", "The user executing the script can't")
"""Words of errors about our rights; the last is how a script reports them."""

_PASSING = ("LOADING", "BUSY", "READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "CLUSTERDOWN")
"""First words of errors that will pass: Redis loads its data, its disk is full, ..."""


def redis_url(settings: RedisSettings, url: str | None = None) -> str:
    """The URL in force: the argument, else `HERMES_QUEUE_REDIS_URL`, else `DEFAULT_REDIS_URL`.

    Raises:
        ConfigurationError: the scheme is not one of Redis.
    """
    value = url or (settings.url.get_secret_value() if settings.url else DEFAULT_REDIS_URL)
    if urlsplit(value).scheme not in ("redis", "rediss", "unix"):
        raise ConfigurationError(
            f"HERMES_QUEUE_REDIS_URL: {masked(value)!r} must start with redis://, rediss:// or unix://"
        )
    return value


def masked(url: str) -> str:
    """`url` without its password, for logs and errors."""
    parts = urlsplit(url)
    if not parts.password:
        return url
    return url.replace(f":{parts.password}@", ":***@", 1)


def _options(settings: RedisSettings, url: str, *, retry: bool = True) -> dict[str, Any]:
    options: dict[str, Any] = {
        **({} if retry else {"retry": Retry(NoBackoff(), 0)}),
        "socket_timeout": settings.socket_timeout_s,
        "socket_connect_timeout": settings.connect_timeout_s,
    }
    if not url.startswith("unix"):
        options["socket_keepalive"] = True
    return options


def connect(settings: RedisSettings, url: str | None = None, *, retry: bool = True) -> redis.Redis:
    """A client whose server has answered a ping.

    With `retry=False` a failed command fails at once, for callers with a deadline.

    Raises:
        ConfigurationError: the URL is missing or malformed.
        RedisUnavailable: no answer, wrong credentials, or a server that is too old.
    """
    target = redis_url(settings, url)
    try:
        client: redis.Redis = redis.Redis.from_url(
            target, **_options(settings, target, retry=retry)
        )
    except ValueError as error:
        raise ConfigurationError(f"HERMES_QUEUE_REDIS_URL: {error}") from error
    with explained(target):
        client.ping()
        check_version(client)
    return client


def connect_async(settings: RedisSettings, url: str | None = None) -> redis.asyncio.Redis:
    """An asyncio client; it connects with its first command.

    Raises:
        ConfigurationError: the URL is missing or malformed.
    """
    target = redis_url(settings, url)
    try:
        return redis.asyncio.Redis.from_url(target, **_options(settings, target))
    except ValueError as error:
        raise ConfigurationError(f"HERMES_QUEUE_REDIS_URL: {error}") from error


def check_version(client: redis.Redis) -> None:
    """Refuse servers older than 6.2; accept one that reports no version (fakeredis)."""
    try:
        info: Any = client.info("server")
    except redis.ResponseError:
        return
    version = str(info.get("redis_version", ""))
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers and numbers < MIN_VERSION:
        raise RedisUnavailable(f"Redis {version} is too old: 6.2 or newer is needed")


def check_eviction(client: redis.Redis, url: str) -> None:
    """Refuse a server that deletes keys when it is full; accept one that does not report it.

    Raises:
        ConfigurationError: it has a memory limit and another policy than noeviction.
        RedisUnavailable: no answer.
    """
    try:
        with explained(url):
            info: Any = client.info("memory")
    except redis.ResponseError:  # fakeredis
        return
    policy = info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction" and info.get("maxmemory"):
        raise ConfigurationError(
            f"Redis at {masked(url)} deletes keys when it is full (maxmemory-policy {policy}): "
            f"jobs and results would vanish silently. {NO_EVICTION_REMEDY}"
        )


@contextmanager
def explained(url: str) -> Iterator[None]:
    """Turn redis-py's errors into ours, with the next step."""
    try:
        yield
    except (redis.AuthenticationError, NoPermissionError) as error:
        raise RedisUnavailable(
            f"Redis at {masked(url)} refuses us ({_NO_PASSWORD.get(str(error)[:5], error)}); "
            "check user and password in HERMES_QUEUE_REDIS_URL"
        ) from error
    except redis.OutOfMemoryError as error:
        raise RedisFull(
            f"Redis at {masked(url)} is full ({error}); raise maxmemory or let consumers catch up"
        ) from error
    except (redis.ConnectionError, redis.TimeoutError, OSError) as error:
        raise RedisUnavailable(
            f"Redis at {masked(url)} cannot be reached: {error}; start it, or correct "
            "HERMES_QUEUE_REDIS_URL (a producer without it runs everything on this machine)"
        ) from error
    except redis.ResponseError as error:
        text = str(error)
        if isinstance(error, redis.ReadOnlyError) or any(word in text for word in _PASSING):
            raise RedisUnavailable(
                f"Redis at {masked(url)} refuses writes for now: {text}"
            ) from error
        if any(word in text for word in _REFUSED):
            raise RedisUnavailable(
                f"Redis at {masked(url)} refuses us: {text}; check user and password in "
                "HERMES_QUEUE_REDIS_URL"
            ) from error
        if "OOM" in text:
            raise RedisFull(
                f"Redis at {masked(url)} is full ({text}); raise maxmemory or let consumers "
                "catch up"
            ) from error
        raise
