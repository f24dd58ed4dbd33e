"""Whether this host can isolate slots, what they can reach, and leftovers of dead workers."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

from hermes_queue.sandbox.host.isolation import find_tools, host_python, shortcomings
from hermes_queue.sandbox.host.paths import check_cache
from hermes_queue.sandbox.local.registry import HostRegistry
from hermes_queue.sandbox.offers import Condition
from hermes_queue.settings import LocalSandboxSettings, PathSettings, RedisSettings


async def conditions() -> AsyncIterator[Condition]:
    """See `Offer.check`."""
    settings, cache = LocalSandboxSettings(), PathSettings().cache.absolute()
    yield await asyncio.to_thread(_fence, settings, cache)
    if settings.network:
        yield network(RedisSettings())
    if left := await asyncio.to_thread(HostRegistry(cache).abandoned):
        yield Condition(
            "leftovers.sandboxes",
            f"{len(left)} local sandboxes of dead workers: {', '.join(left[:3])}",
            "any worker on this host ends them within half a minute",
        )


def _fence(settings: LocalSandboxSettings, cache: Path) -> Condition:
    check, fenced = "sandbox.local", settings.isolation == "bwrap"
    check_cache(cache, fenced=fenced)
    if not fenced:
        return Condition(
            check,
            "isolation is off: agents run commands as this user, with its files and network",
            "unset HERMES_QUEUE_LOCAL_ISOLATION unless you trust the agents",
        )
    tools = find_tools(cache)
    host_python()
    if lacks := shortcomings(settings, tools):
        whats = "; ".join(lack.what for lack in lacks)
        return Condition(
            check, f"{tools.bwrap} works, but {whats}", "; ".join(lack.fix for lack in lacks)
        )
    return Condition(check, f"{tools.bwrap} isolates slots")


def network(settings: RedisSettings) -> Condition:
    """The reach of agents with this host's network."""
    if _open_on_loopback(settings):
        return Condition(
            "sandbox.network",
            "agents have this host's network, and Redis accepts commands on its loopback without "
            "a password: an agent can change scores and read all records",
            "unset HERMES_QUEUE_LOCAL_NETWORK and _IMAGES_NETWORK, or give Redis a password or a "
            "unix socket",
        )
    return Condition(
        "sandbox.network",
        "agents have this host's network: its loopback, neighbours and metadata service",
        "unset HERMES_QUEUE_LOCAL_NETWORK and _IMAGES_NETWORK unless their tasks need it",
    )


def _open_on_loopback(settings: RedisSettings) -> bool:
    parts = urlsplit(settings.url.get_secret_value() if settings.url else "unix:")
    if parts.scheme == "unix" or parts.password:
        return False
    host = parts.hostname or "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
