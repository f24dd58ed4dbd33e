"""Clients of a master that sentinels know, wherever it is at the moment.

Each new connection asks the sentinels where the master is. A connection is given up when its server
says that it is no master any more, so the next one is made to the new master.
"""

from __future__ import annotations

from typing import Any

import redis
import redis.asyncio
import redis.asyncio.sentinel as asyncio_sentinel
import redis.sentinel
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from hermes_queue.settings import RedisSettings
from hermes_queue.settings.redis import SentinelAddress

SENTINEL_TIMEOUT_S = 2.0
"""Most seconds to connect to a sentinel, and to wait for its answer, before another is asked."""
_TRIES = 3
"""Tries after the first one, of a connection as well as of a command."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.25, 1.0

DEMOTED = ("READONLY", "UNBLOCKED", "NOREPLICAS")
"""Words of errors of a server that is a replica now, or a master without replicas: they may follow
another master by now. Redis 6.2 reports such errors from within a script, where redis-py does not
see them."""


def _demotion(error: redis.ResponseError) -> redis.ConnectionError | None:
    if any(word in str(error) for word in DEMOTED):
        return redis.ConnectionError(f"another server may be the master by now: {error}")
    return None


class MasterConnection(redis.sentinel.SentinelManagedConnection):
    """A connection that ends when its server is no master any more."""

    def read_response(self, *args: Any, **options: Any) -> Any:
        """See `Connection.read_response`."""
        try:
            return super().read_response(*args, **options)
        except redis.ResponseError as error:
            if lost := _demotion(error):
                self.disconnect()  # type: ignore[no-untyped-call]
                raise lost from error
            raise


class TlsMasterConnection(MasterConnection, redis.connection.SSLConnection):
    """The same over TLS."""


class AsyncMasterConnection(asyncio_sentinel.SentinelManagedConnection):
    """A connection of asyncio that ends when its server is no master any more."""

    async def read_response(self, *args: Any, **options: Any) -> Any:
        """See `Connection.read_response`."""
        try:
            return await super().read_response(*args, **options)
        except redis.ResponseError as error:
            if lost := _demotion(error):
                await self.disconnect()
                raise lost from error
            raise


class AsyncTlsMasterConnection(AsyncMasterConnection, redis.asyncio.connection.SSLConnection):
    """The same over TLS."""


class Sentinels(redis.sentinel.Sentinel):
    """Sentinels that threads may ask at once; the one that answered last is asked first.

    redis-py reorders its list for that, and loses sentinels when two threads do so.
    """

    _first = 0

    def discover_master(self, service_name: str) -> tuple[str, int]:
        """See `Sentinel.discover_master`."""
        problems = []
        for place in _order(self._first, len(self.sentinels)):
            asked: Any = self.sentinels[place]
            try:
                masters = asked.sentinel_masters()
            except (redis.RedisError, OSError) as error:
                problems.append(_problem(asked, error))
                continue
            finally:  # rarely used, by each process of the fleet
                asked.connection_pool.disconnect(inuse_connections=False)
            state = masters.get(service_name)
            if state and not _is_down(state):
                self._first = place
                return state["ip"], state["port"]
            problems.append(_problem(asked, _state(masters, service_name)))
        raise redis.sentinel.MasterNotFoundError("; ".join(problems))


class AsyncSentinels(asyncio_sentinel.Sentinel):
    """The same for tasks of asyncio."""

    _first = 0

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """See `Sentinel.discover_master`."""
        problems = []
        for place in _order(self._first, len(self.sentinels)):
            asked: Any = self.sentinels[place]
            try:
                masters = await asked.sentinel_masters()
            except (redis.RedisError, OSError) as error:
                problems.append(_problem(asked, error))
                continue
            finally:  # rarely used, by each process of the fleet
                await asked.connection_pool.disconnect(inuse_connections=False)
            state = masters.get(service_name)
            if state and not _is_down(state):
                self._first = place
                return state["ip"], state["port"]
            problems.append(_problem(asked, _state(masters, service_name)))
        raise asyncio_sentinel.MasterNotFoundError("; ".join(problems))


def _order(first: int, count: int) -> list[int]:
    return [first, *(place for place in range(count) if place != first)]


def _problem(asked: Any, what: object) -> str:
    where = asked.connection_pool.connection_kwargs
    return f"{where['host']}:{where['port']}: {what}"


def _is_down(state: dict[str, Any]) -> bool:
    return bool(not state["is_master"] or state["is_sdown"] or state["is_odown"])


def _state(masters: dict[str, Any], name: str) -> str:
    if name in masters:
        return f"{name!r} is down"
    return f"knows {', '.join(sorted(masters)) or 'no master'}, and not {name!r}"


def sentinel_options(address: SentinelAddress, settings: RedisSettings, url: str) -> dict[str, Any]:
    """redis-py's options of the connections to sentinels."""
    timeout_s = min(SENTINEL_TIMEOUT_S, settings.connect_timeout_s)
    options: dict[str, Any] = {"socket_timeout": timeout_s, "socket_connect_timeout": timeout_s}
    options |= {"ssl": True, **settings.tls_options(url)} if address.tls else {}
    if settings.sentinel_username:
        options["username"] = settings.sentinel_username
    if settings.sentinel_password:
        options["password"] = settings.sentinel_password.get_secret_value()
    return options


def _master_options(address: SentinelAddress, settings: RedisSettings, url: str) -> dict[str, Any]:
    return {
        "db": address.db,
        "username": address.username or None,
        "password": address.password or None,
        "socket_timeout": settings.timeout_s(url),
        "socket_connect_timeout": settings.connect_timeout_s,
        "socket_keepalive": True,
        **settings.tls_options(url),
    }


def client(
    address: SentinelAddress, settings: RedisSettings, url: str, *, patient: bool
) -> redis.Redis:
    """A client of the master, not yet connected.

    A `patient` one tries a failed command again for some seconds, where the master is by then.
    """
    asking = sentinel_options(address, settings, url) | {"retry": Retry(NoBackoff(), 0)}
    sentinels: Any = Sentinels(list(address.sentinels), sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    backoff = ExponentialWithJitterBackoff(_LONGEST_PAUSE_S, _PAUSE_S)
    made: redis.Redis = sentinels.master_for(
        address.master,
        connection_class=TlsMasterConnection if address.tls else MasterConnection,
        retry=Retry(backoff, _TRIES) if patient else Retry(NoBackoff(), 0),
        **_master_options(address, settings, url),
    )
    return made


def async_client(
    address: SentinelAddress, settings: RedisSettings, url: str, **more: Any
) -> redis.asyncio.Redis:
    """The same for asyncio; always patient."""
    asking = sentinel_options(address, settings, url) | {"retry": AsyncRetry(NoBackoff(), 0)}
    sentinels: Any = AsyncSentinels(list(address.sentinels), sentinel_kwargs=asking)  # type: ignore[no-untyped-call]
    backoff = ExponentialWithJitterBackoff(_LONGEST_PAUSE_S, _PAUSE_S)
    made: redis.asyncio.Redis = sentinels.master_for(
        address.master,
        connection_class=AsyncTlsMasterConnection if address.tls else AsyncMasterConnection,
        retry=AsyncRetry(backoff, _TRIES),
        **_master_options(address, settings, url),
        **more,
    )
    return made


def ask(
    address: SentinelAddress, settings: RedisSettings, url: str, node: tuple[str, int]
) -> tuple[str, int]:
    """Where one sentinel says that the master is.

    Raises:
        redis.RedisError: it does not answer, or knows no such master.
    """
    options = sentinel_options(address, settings, url) | {"retry": Retry(NoBackoff(), 0)}
    with redis.Redis(node[0], node[1], **options) as client:
        found: Any = client.sentinel_get_master_addr_by_name(address.master)
    if found is None:
        raise redis.ResponseError(f"it knows no {address.master!r}")
    return found[0], int(found[1])
