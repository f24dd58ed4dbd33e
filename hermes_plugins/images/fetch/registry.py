"""A client of registries (https://github.com/opencontainers/distribution-spec).

Names come from tasks, so a name must not lead the worker into its own network: private addresses
are reached only for the configured mirror, and for hosts that `ImageSettings.allowed` names. What a
registry sends is checked against digests, and bounded.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import json
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode, urljoin, urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

from hermes_plugins.images.fetch.blobs import LayerBlob, add_layers
from hermes_plugins.images.fetch.documents import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_DOCUMENT_BYTES,
    Configuration,
    Descriptor,
    MalformedImage,
    Manifest,
    ManifestIndex,
    check_digest,
    read,
)
from hermes_plugins.images.names import ImageRecord
from hermes_plugins.images.permission import DOCKER_HUB, VARIABLE
from hermes_plugins.images.settings import ImageSettings
from hermes_plugins.images.store import ImageStore, PinnedImage, cannot_be_had
from hermes_queue.errors import EnvInfraError, SandboxRejected
from hermes_queue.images.spec import ImageConfig

HUB_HOST = "registry-1.docker.io"
TRIES = 4
PAUSE_S = 1.0
MAX_PAUSE_S = 60.0
MAX_REDIRECTS = 5
MAX_TOKEN_CHARS = 64 << 10
TIMEOUT = aiohttp.ClientTimeout(total=3600, sock_connect=30, sock_read=60)
CHUNK_BYTES = 1 << 20
_CHALLENGE = re.compile(r'([a-z]+)="([^"]{0,2000})"')


@dataclass(frozen=True, slots=True)
class RegistryPlace:
    """Where an image is pulled from."""

    base: str
    """`https://host[:port]`."""
    path: str
    tag: str
    """Tag or digest."""
    account: str
    """Host under which the credentials are kept."""


def place_of(name: str, settings: ImageSettings) -> RegistryPlace:
    """Where a whole name is pulled from."""
    host, _, rest = name.partition("/")
    path, at, digest = rest.partition("@")
    if not at:
        path, _, digest = path.rpartition(":")
    else:
        path = re.sub(r":[^/]*$", "", path)
    account = host
    if host == DOCKER_HUB:
        host = settings.mirror or HUB_HOST
        account = settings.mirror or "https://index.docker.io/v1/"
    if "://" not in host:
        is_local = re.fullmatch(r"(localhost|127\.[0-9.]+|\[::1\])(:[0-9]+)?", host)
        host = f"{'http' if is_local else 'https'}://{host}"
    return RegistryPlace(host.rstrip("/"), path, digest, account)


class _PublicResolver(AbstractResolver):
    """Resolves names, to public addresses only unless the operator named the host."""

    def __init__(self, trusted: frozenset[str]) -> None:
        self._trusted = trusted
        self._inner = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._inner.resolve(host, port, family)
        if host not in self._trusted:
            for each in found:
                check_public(host, each["host"])
        return found

    async def close(self) -> None:
        await self._inner.close()


def check_public(host: str, address: str) -> None:
    """Raises SandboxRejected for addresses of this host, its networks and metadata services."""
    ip = ipaddress.ip_address(address.partition("%")[0])
    if not (getattr(ip, "ipv4_mapped", None) or ip).is_global:
        raise SandboxRejected(
            f"the registry {host} has the private address {address}; if you trust it, name it in "
            f'{VARIABLE}ALLOWED, e.g. ["*", "{host}/*"]'
        )


def trusted_hosts(settings: ImageSettings) -> frozenset[str]:
    """Hosts that the operator named: the mirror, and the beginnings of allowed patterns."""
    names = [each.partition("/")[0] for each in settings.allowed if "/" in each]
    names.append((settings.mirror or "").partition("://")[2] or settings.mirror or "")
    hosts = (urlsplit(f"//{name}").hostname for name in names if "*" not in name)
    return frozenset(host for host in hosts if host)


class Registry:
    """Pulls images of registries into a store; see `Puller`."""

    def __init__(self, *, pause_s: float = PAUSE_S) -> None:
        self._pause_s = pause_s

    async def __call__(self, store: ImageStore, name: str) -> ImageRecord:
        """See `Puller`."""
        pinned = PinnedImage(store.layers)
        try:
            async with self._pulling(name, store.settings) as pull:
                return await self._pulled(store, name, pull, pinned)
        finally:
            pinned.release()

    async def configuration(self, name: str, settings: ImageSettings) -> tuple[ImageConfig, str]:
        """What an image says about its programs, and the digest of its manifest; no layer is read.

        Raises: as `Puller`.
        """
        async with self._pulling(name, settings) as pull:
            _, found, digest = await _documents(pull)
            return found.programs(), digest

    @asynccontextmanager
    async def _pulling(self, name: str, settings: ImageSettings) -> AsyncIterator[_Pull]:
        """Requests for one image, whose errors are those of `Puller`."""
        place = place_of(name, settings)
        trusted = trusted_hosts(settings)
        connector = aiohttp.TCPConnector(resolver=_PublicResolver(trusted), limit=4)
        try:
            async with aiohttp.ClientSession(
                connector=connector, timeout=TIMEOUT, trust_env=True, auto_decompress=False
            ) as session:
                yield _Pull(session, place, trusted, self._pause_s)
        except MalformedImage as error:
            raise EnvInfraError(f"{name} from {place.base}: {error}") from error
        except _Refused as error:
            raise SandboxRejected(cannot_be_had(name, f"{place.base} {error}")) from error
        except (aiohttp.ClientError, OSError) as error:
            why = f"{place.base} cannot be reached: {error or type(error).__name__}"
            raise EnvInfraError(cannot_be_had(name, why)) from error

    async def _pulled(
        self, store: ImageStore, name: str, pull: _Pull, pinned: PinnedImage
    ) -> ImageRecord:
        manifest, configuration, digest = await _documents(pull)
        most = max(store.settings.store_mb, 1) << 20
        if sum(each.size for each in manifest.layers) > most:
            raise MalformedImage(
                f"its layers have more than {VARIABLE}STORE_MB={store.settings.store_mb}"
            )
        ids = configuration.rootfs.diff_ids
        if len(ids) != len(manifest.layers):
            raise MalformedImage(
                f"its configuration does not name its {len(manifest.layers)} layers"
            )
        blobs = [
            LayerBlob(diff_id, partial(pull.blob, each), f"layer {each.digest[7:19]} of {name}")
            for each, diff_id in zip(manifest.layers, ids, strict=True)
        ]
        top = await add_layers(store.layers, blobs, pin=pinned.pin, max_bytes=most)
        return ImageRecord(
            name, top, configuration.programs(), digest, "pulled", pull.place.base, time.time()
        )


async def _documents(pull: _Pull) -> tuple[Manifest, Configuration, str]:
    """What describes an image, and the digest of its tag's document. Raises MalformedImage."""
    data = await pull.manifest(pull.place.tag)
    if pull.is_index(data):
        chosen = read(ManifestIndex, data, "its index").for_this_host()
        manifest_data = await pull.manifest(chosen.digest)
    else:
        manifest_data = data
    manifest = read(Manifest, manifest_data, "its manifest")
    configuration_data = await pull.document(manifest.config)
    configuration = read(Configuration, configuration_data, "its configuration")
    return manifest, configuration, hashlib.sha256(data).hexdigest()


class _Refused(Exception):
    """The registry has no such image for us."""


class _Pull:
    """Requests for one image."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        place: RegistryPlace,
        trusted: frozenset[str],
        pause_s: float,
    ) -> None:
        self.place = place
        self._session, self._trusted, self._pause_s = session, trusted, pause_s
        self._authorization: str | None = None

    async def manifest(self, reference: str) -> bytes:
        """A manifest or index, whose digest is checked if it is named."""
        url = f"{self.place.base}/v2/{self.place.path}/manifests/{reference}"
        accept = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
        data = await self._small(url, {"Accept": accept})
        if reference.startswith("sha256:"):
            check_digest(data, reference, "its manifest")
        return data

    @staticmethod
    def is_index(data: bytes) -> bool:
        """Whether a document lists manifests. Raises MalformedImage: it is not JSON."""
        try:
            found = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise MalformedImage(f"its manifest is not JSON: {error}") from error
        return isinstance(found, dict) and "manifests" in found

    async def document(self, descriptor: Descriptor) -> bytes:
        """A small blob."""
        data = await self._small(self._blob_url(descriptor), {})
        check_digest(data, descriptor.digest, "its configuration")
        return data

    async def blob(self, descriptor: Descriptor, file: IO[bytes]) -> None:
        """A blob of any size, tried again if it breaks off. Raises MalformedImage: it differs."""
        for number in range(1, TRIES + 1):
            file.seek(0)
            file.truncate()
            try:
                await self._copy(descriptor, file)
                return
            except aiohttp.ClientPayloadError:
                if number == TRIES:
                    raise
                await asyncio.sleep(self._pause_s * number)

    async def _copy(self, descriptor: Descriptor, file: IO[bytes]) -> None:
        digest, left = hashlib.sha256(), descriptor.size
        async with self._request(self._blob_url(descriptor), {}) as response:
            async for chunk in response.content.iter_chunked(CHUNK_BYTES):
                left -= len(chunk)
                if left < 0:
                    raise MalformedImage(f"{descriptor.digest} is longer than the manifest says")
                digest.update(chunk)
                await asyncio.to_thread(file.write, chunk)
        if f"sha256:{digest.hexdigest()}" != descriptor.digest:
            raise MalformedImage(f"{descriptor.digest} has other content than the manifest says")
        await asyncio.to_thread(file.flush)

    def _blob_url(self, descriptor: Descriptor) -> str:
        return f"{self.place.base}/v2/{self.place.path}/blobs/{descriptor.digest}"

    async def _small(self, url: str, headers: Mapping[str, str]) -> bytes:
        async with self._request(url, headers) as response:
            data = await response.content.read(MAX_DOCUMENT_BYTES + 1)
            while not response.content.at_eof() and len(data) <= MAX_DOCUMENT_BYTES:
                data += await response.content.read(MAX_DOCUMENT_BYTES + 1 - len(data))
            if len(data) > MAX_DOCUMENT_BYTES:
                raise MalformedImage(f"{url} has more than {MAX_DOCUMENT_BYTES >> 20} MiB")
            return data

    @asynccontextmanager
    async def _request(
        self, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET, with a token where one is asked for, patient with busy servers."""
        for number in range(1, TRIES + 1):
            async with self._redirected(url, headers) as response:
                if response.status == 200:
                    yield response
                    return
                if response.status == 401 and self._authorization is None:
                    challenge = response.headers.get("WWW-Authenticate", "")
                elif response.status in (429, 500, 502, 503, 504) and number < TRIES:
                    pause = response.headers.get("Retry-After", "")
                    wait_s = float(pause) if pause.isdecimal() else self._pause_s * 2**number
                    await asyncio.sleep(min(wait_s, MAX_PAUSE_S))
                    continue
                elif response.status in (401, 403, 404):
                    raise _Refused(f"answers {response.status} to {url}")
                else:
                    raise MalformedImage(f"{url} answers {response.status}")
            self._authorization = await self._authorize(challenge)
        raise _Refused(f"does not accept our credentials for {url}")

    @asynccontextmanager
    async def _redirected(
        self, url: str, headers: Mapping[str, str]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """GET that follows redirects; our token goes to the registry alone."""
        for _ in range(MAX_REDIRECTS):
            self._check_host(url)
            own = dict(headers)
            if self._authorization and url.startswith(f"{self.place.base}/"):
                own["Authorization"] = self._authorization
            async with self._session.get(url, headers=own, allow_redirects=False) as response:
                if response.status not in (301, 302, 303, 307, 308):
                    yield response
                    return
                url = urljoin(url, response.headers.get("Location", ""))
        raise MalformedImage(f"more than {MAX_REDIRECTS} redirects, at last to {url[:300]}")

    def _check_host(self, url: str) -> None:
        """Addresses in URLs are not resolved, so they are checked here."""
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme not in ("http", "https") or not host:
            raise MalformedImage(f"it leads to {url[:300]}")
        if parts.scheme == "http" and not self.place.base.startswith("http://"):
            raise MalformedImage(f"it leads to {url[:300]}, which is not encrypted")
        if host not in self._trusted and re.fullmatch(r"[0-9.]+|.*:.*", host):
            check_public(host, host)

    async def _authorize(self, challenge: str) -> str:
        """The header that answers a challenge. Raises _Refused: there is none."""
        scheme, _, rest = challenge[:4000].partition(" ")
        credentials = stored_credentials(self.place.account)
        if scheme.lower() == "basic" and credentials:
            return f"Basic {credentials}"
        fields = dict(_CHALLENGE.findall(rest))
        if scheme.lower() != "bearer" or "realm" not in fields:
            raise _Refused("asks for credentials that we do not have")
        query = {"service": fields.get("service", "")}
        query["scope"] = fields.get("scope") or f"repository:{self.place.path}:pull"
        url = fields["realm"] + ("&" if "?" in fields["realm"] else "?") + urlencode(query)
        self._check_host(url)
        headers = {"Authorization": f"Basic {credentials}"} if credentials else {}
        async with self._session.get(url, headers=headers, allow_redirects=False) as response:
            if response.status != 200:
                raise _Refused(f"gives no token: {response.status} from {fields['realm'][:200]}")
            found = json.loads(await response.content.read(MAX_TOKEN_CHARS))
        token = found.get("token") or found.get("access_token") if isinstance(found, dict) else None
        if not isinstance(token, str) or not token.isascii() or not token.isprintable():
            raise _Refused("gives no token")
        return f"Bearer {token}"


def stored_credentials(account: str) -> str | None:
    """What `docker login` left for a registry in config.json, if it is there in plain form."""
    home = os.environ.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    try:
        found: Any = json.loads(Path(home, "config.json").read_bytes())["auths"][account]["auth"]
        base64.b64decode(found, validate=True)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return str(found)
