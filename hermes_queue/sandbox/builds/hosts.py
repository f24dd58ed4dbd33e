"""Hosts that builds of assets may reach: the worker's package indexes, and configured ones.

Builds have no network (see `build_network`); the worker's proxy checks these rules before it
opens a connection for a build.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import unquote, urlsplit
from urllib.request import getproxies_environment, proxy_bypass

from hermes_queue.errors import EnvInfraError
from hermes_queue.settings.sandbox import HOST_AND_PORT, split_hosts

Scheme = Literal["http", "https"]
"""http: GET and HEAD through the proxy, unencrypted. https: a tunnel."""

Destination = tuple[Scheme, str, int]

PORTS: Mapping[Scheme, int] = {"http": 80, "https": 443}
DEFAULT_INDEX = "https://pypi.org/simple"
FILES = {
    "pypi.org": ("files.pythonhosted.org",),
    "pypi.python.org": ("pypi.org", "files.pythonhosted.org"),
    "test.pypi.org": ("test-files.pythonhosted.org",),
}
"""Hosts to which the pages of public indexes link or redirect."""
RESOLVE_TIMEOUT_S = 20.0
MAX_ADDRESSES = 4
_CARRIERS = "100.64.0.0/10"
"""Shared by carriers, and some providers' metadata."""
_PRIVATE = tuple(
    ipaddress.ip_network(block)
    for block in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", _CARRIERS, "fc00::/7")
)


class HostRefused(Exception):
    """The build may not connect there; the text says why and how to allow it."""


@dataclass(frozen=True, slots=True)
class OuterProxy:
    """A proxy that this worker itself needs to reach a host."""

    scheme: Scheme
    host: str
    port: int
    credentials: str | None
    """`user:password`, decoded."""


@dataclass(frozen=True, slots=True)
class BuildHosts:
    """Hosts and ports that builds may reach, and how.

    Immutable. `named` are places that the operator gave as an index or in the settings: they may
    be on loopback or in a private network. `implied` are those that follow from them.
    """

    named: frozenset[Destination]
    implied: frozenset[Destination]
    proxies: Mapping[str, str] = field(default_factory=dict)
    """The worker's own proxies, as from `urllib.request.getproxies_environment`."""
    public: bool = False
    """Whether every host with a public address may be reached, as builds of images need."""

    @classmethod
    def of(cls, pip: Mapping[str, str], named: str, *, public: bool = False) -> BuildHosts:
        """From pip's settings as environment variables, and from `LOCAL_BUILD_HOSTS`."""
        indexes = set(_indexes(pip))
        implied: set[Destination] = {
            ("https", host, PORTS["https"])
            for _, index, _ in indexes
            for host in FILES.get(index, ())
        }
        for word in pip.get("PIP_TRUSTED_HOST", "").split():
            implied |= set(_places(word))
        for word in split_hosts(named):
            indexes |= set(_places(word))
        proxies = dict(getproxies_environment())
        if own := pip.get("PIP_PROXY"):
            proxies |= {"http": own, "https": own}
        return cls(frozenset(indexes), frozenset(implied), proxies, public)

    def check(self, scheme: Scheme, host: str, port: int) -> None:
        """Raise HostRefused unless builds may connect there in this way."""
        if (scheme, host, port) in self.named | self.implied:
            return
        if not self.public:
            raise HostRefused(_how_to_allow(host, port, "is not a package index of the worker"))
        # Where an outer proxy resolves names, private ones are for that proxy to refuse.
        if host == "localhost" or host.endswith(".localhost") or not _is_name_or_public(host):
            raise HostRefused(_how_to_allow(host, port, "is not public"))

    async def addresses(self, scheme: Scheme, host: str, port: int) -> list[str]:
        """Numeric addresses of an allowed place; connect only to these.

        Raises:
            HostRefused: the place is only implied, and is in a private network.
            OSError: the name has no address, or was not resolved in time.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(RESOLVE_TIMEOUT_S):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        numeric = list(dict.fromkeys(str(entry[4][0]) for entry in found))
        if (scheme, host, port) not in self.named:
            for address in numeric:
                if not is_public(address):
                    raise HostRefused(
                        _how_to_allow(host, port, f"has the private address {address}")
                    )
        return numeric[:MAX_ADDRESSES]

    def outer_proxy(self, scheme: Scheme, host: str, port: int) -> OuterProxy | None:
        """The proxy the worker needs to get there. Raises EnvInfraError: builds cannot use it."""
        url = self.proxies.get(scheme) or self.proxies.get("all")
        if not url or proxy_bypass(f"{host}:{port}", dict(self.proxies)):
            return None
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise EnvInfraError(
                f"builds cannot use this worker's proxy for {host}:{port}: it is a "
                f"{parts.scheme}:// one; set HTTP_PROXY and HTTPS_PROXY to an http:// one"
            )
        to_proxy: Scheme = "https" if parts.scheme == "https" else "http"
        credentials = None
        if parts.username is not None:
            credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return OuterProxy(to_proxy, parts.hostname, parts.port or PORTS[to_proxy], credentials)


def normal_host(host: str) -> str:
    """A host in the form for comparisons: lower case, without brackets and a final dot."""
    return host.strip("[]").rstrip(".").lower()


def is_public(address: str) -> bool:
    """Whether a numeric address is not of this host, its private networks or a metadata service."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo and found.teredo[1])
        found = inner or found
    special = found.is_loopback or found.is_link_local or found.is_multicast
    special = special or found.is_unspecified or found.is_reserved
    return not special and not any(found in block for block in _PRIVATE)


def _is_name_or_public(host: str) -> bool:
    try:
        return is_public(host)
    except ValueError:
        # inet_aton(3), which resolvers use, also takes 127.1, 0x7f000001 and the like.
        return any(not label.isdigit() for label in host.split(".")) and not host.startswith("0x")


def _indexes(pip: Mapping[str, str]) -> Iterator[Destination]:
    """The http and https places in pip's settings; the others are files."""
    urls = pip.get("PIP_FIND_LINKS", "").split()
    if pip.get("PIP_NO_INDEX", "").lower() not in ("1", "true", "yes", "on"):
        urls.append(pip.get("PIP_INDEX_URL") or DEFAULT_INDEX)
        urls += pip.get("PIP_EXTRA_INDEX_URL", "").split()
    for url in urls:
        parts = urlsplit(url)
        for scheme, port in PORTS.items():
            if parts.scheme == scheme and parts.hostname:
                yield scheme, normal_host(parts.hostname), parts.port or port


def _places(word: str) -> Iterator[Destination]:
    """`host:port` for both schemes, `host` with the default port of each."""
    if match := HOST_AND_PORT.fullmatch(word):
        for scheme, port in PORTS.items():
            yield scheme, normal_host(match.group(1)), int(match.group(2) or port)


def _how_to_allow(host: str, port: int, why: str) -> str:
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return (
        f"the build tried to reach {place}, which {why}; if it is a package server that you "
        f"trust, allow it on the workers with HERMES_QUEUE_LOCAL_BUILD_HOSTS={place}"
    )
